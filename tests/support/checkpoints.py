"""Copies of the shipped drafters whose config or weights are changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from driftscope_lab.trio import trio_path

Config = dict[str, Any]
State = dict[str, Tensor]
TARGET = trio_path() / "target"
AUX = "eagle_aux_hidden_state_layer_ids"
FEWER = 512


def changed(
    folder: Path,
    of: str = "eagle31",
    *,
    config: Callable[[Config], object] | None = None,
    weights: Callable[[State], object] | None = None,
) -> Path:
    """Write a copy of a shipped model into `folder`, and change its config and weights in place."""
    source = trio_path() / of
    fields = json.loads((source / "config.json").read_text())
    state = load_file(source / "model.safetensors")
    if config:
        config(fields)
    if weights:
        weights(state)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=1))
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def own_vocabulary(state: State) -> None:
    """Give a drafter a vocabulary of its own: each second token."""
    kept = torch.arange(0, 2 * FEWER, 2)
    state["lm_head.weight"] = state["lm_head.weight"][kept]
    state["d2t"] = kept - torch.arange(FEWER)
    state["t2d"] = torch.zeros(2 * FEWER, dtype=torch.bool).index_fill(0, kept, True)


def own_vocabulary_config(fields: Config) -> None:
    """Name the vocabulary of `own_vocabulary`."""
    fields["draft_vocab_size"] = FEWER


def as_speculators(fields: Config) -> None:
    """Turn a config into the format of the speculators library."""
    layer = {key: fields.pop(key) for key in list(fields) if key not in _SPECULATORS_KEYS}
    layer["model_type"] = "llama"
    fields.update(
        architectures=["Eagle3Speculator"],
        speculators_model_type="eagle3",
        transformer_layer_config=layer,
        norm_before_residual=False,
    )
    fields.pop("eagle_config", None)


_SPECULATORS_KEYS = (AUX, "draft_vocab_size", "fc_norm", "norm_output", "norm_before_fc")


def speculators_names(state: State) -> None:
    """Rename the first layer as the speculators library does."""
    for name in [name for name in state if name.startswith("midlayer.")]:
        state[name.replace("midlayer.", "layers.0.")] = state.pop(name)


def planted(source: Path, folder: Path, plant: Callable[[State], None]) -> Path:
    """Return a copy of a checkpoint in `folder` with changed weights."""
    path = shutil.copytree(source, folder / "planted")
    state = load_file(path / "model.safetensors")
    plant(state)
    save_file({name: each.contiguous() for name, each in state.items()}, path / "model.safetensors")
    return path
