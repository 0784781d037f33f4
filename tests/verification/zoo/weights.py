"""Seeded random weights: varied attention, hidden states that stay near unit scale."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Shapes = dict[str, tuple[int, ...]]

SEED = 11
VOCABULARY = 256
"""Vocabulary size of the targets made here; prompts for any kind stay below it."""
NORM_SPREAD = 0.2
"""Deviation of the norms' weights from 1."""
LEAN = 0.3
"""Share of the embedding in a residual: small enough that target and drafter sometimes differ."""
GAINS = {
    "q_proj": 1.5,
    "k_proj": 1.5,
    "q_b_proj": 1.5,
    "kv_a_proj_with_mqa": 1.5,
    "kv_b_proj": 1.5,
    "lm_head": 4.0,
}
"""Standard deviation of a matrix's output for input of unit variance; 1 for the rest."""


def random_weights(
    shapes: Shapes, gains: Mapping[str, float] | None = None, seed: int = SEED
) -> dict[str, torch.Tensor]:
    """Return a tensor for each name; `gains` by the module's own name override `GAINS`."""
    generator = torch.Generator().manual_seed(seed)
    known = {**GAINS, **(gains or {})}
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        *_, module, kind = ("", *name.split("."))
        if kind == "bias":
            weights[name] = NORM_SPREAD * values
        elif len(shape) == 1:
            weights[name] = 1 + NORM_SPREAD * values
        elif module == "embed_tokens":
            weights[name] = values * known.get(module, 1.0)
        else:
            weights[name] = values * known.get(module, 1.0) / shape[-1] ** 0.5
    return weights


def successor_head(embeddings: torch.Tensor) -> torch.Tensor:
    """Return an output matrix under which a hidden state near a token's embedding gives the next
    id.

    Target and drafter that both keep the embedding in their residual then agree occasionally, so
    that some drafts are accepted although everything else is random.
    """
    head: torch.Tensor = embeddings.roll(1, 0) * GAINS["lm_head"] / embeddings.shape[1] ** 0.5
    return head


def lean_on_embedding(width: int, *, embedding_first: bool, share: float = LEAN) -> torch.Tensor:
    """Return a projection [width, 2 * width] that passes the embedding, and some of the hidden
    state."""
    generator = torch.Generator().manual_seed(SEED)
    other = torch.randn(width, width, generator=generator) * 0.5 / width**0.5
    embedding = share * torch.eye(width)
    return torch.cat((embedding, other) if embedding_first else (other, embedding), 1)


def agreeing_weights(shapes: Shapes, *copies: str, share: float = LEAN) -> dict[str, torch.Tensor]:
    """Return random weights with a weak embedding and an output matrix that responds to it.

    `copies` are further names of the output matrix.
    """
    weights = random_weights(shapes, {"embed_tokens": share})
    head = successor_head(weights["model.embed_tokens.weight"] / share)
    return {**weights, **{name: head.clone() for name in ("lm_head.weight", *copies)}}


def save_model(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Write `config.json` and `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
