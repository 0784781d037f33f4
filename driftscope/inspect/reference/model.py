"""Loads and saves the reference models in the file format of vLLM and Hugging Face.

A model directory holds `config.json` and `model.safetensors` under Hugging Face's parameter names.
The drafter's file has no embedding if it shares the target's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from driftscope.boundary import strict_json
from driftscope.inspect.reference.config import DecoderConfig, DrafterConfig
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.reference.target import Target

_FIRST, _REFERENCE = "layers.0.", "midlayer."
"""Names of the first layer in files of some formats, and in the reference drafter."""
__all__ = [
    "Drafter",
    "Target",
    "load_drafter",
    "load_target",
    "reference_name",
    "save_drafter",
    "save_target",
]


def load_target(path: Path, dtype: torch.dtype = torch.float32) -> Target:
    """Read a target directory. Raises KeyError for a config that lacks a size."""
    target = Target(DecoderConfig.from_hf(_read_config(path)))
    target.load_state_dict(load_file(path / "model.safetensors"))
    return target.to(dtype).eval()


def load_drafter(
    path: Path,
    dtype: torch.dtype = torch.float32,
    *,
    target_layers: int | None = None,
    head: torch.Tensor | None = None,
) -> Drafter:
    """Read a drafter directory. `head` is the target's, [vocabulary, H], for a drafter that has
    none. Raises KeyError for a config that names no auxiliary layers, unless `target_layers`, its
    target's number of layers, is given: the drafter then gets vLLM's default."""
    drafter = Drafter(DrafterConfig.from_hf(_read_config(path), target_layers))
    shared = {} if head is None else {"lm_head.weight": head}
    stored = load_file(path / "model.safetensors")
    named = {reference_name(name): each for name, each in stored.items()}
    drafter.load_state_dict({**shared, **named})
    return drafter.to(dtype).eval()


def reference_name(name: str) -> str:
    """Return the name in the reference drafter of a tensor in a file; some formats call the first
    layer `layers.0.`."""
    return _REFERENCE + name.removeprefix(_FIRST) if name.startswith(_FIRST) else name


def save_target(target: Target, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a target directory that vLLM loads."""
    fields = {
        "architectures": ["LlamaForCausalLM"],
        **target.config.to_hf(),
        "tie_word_embeddings": True,
    }
    _write(path, fields, target.state_dict(), dtype)


def save_drafter(drafter: Drafter, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a drafter directory that vLLM loads under method `eagle3`, or `eagle` for EAGLE-1,
    whose head is the target's and is not written."""
    state = drafter.state_dict()
    if drafter.config.eagle1:
        named = {name.replace(_REFERENCE, _FIRST, 1): each for name, each in state.items()}
        state = {name: each for name, each in named.items() if not name.startswith("lm_head.")}
    _write(path, drafter.config.to_hf(), state, dtype)


def _read_config(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return fields


def _write(
    path: Path, fields: dict[str, Any], state: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in state.items()
    }
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    fields = {**fields, "torch_dtype": str(dtype).removeprefix("torch.")}
    (path / "config.json").write_text(strict_json.dumps(fields, indent=1) + "\n", encoding="utf-8")
