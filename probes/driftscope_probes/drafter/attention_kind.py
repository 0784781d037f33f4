"""The attention parameters of one drafter layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionKind:
    """Attention parameters of one layer, read from the layer itself."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    """Number of slots that a query sees, including its own; None: all."""
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap); 0: unchanged."""
    sinks: torch.Tensor | None = None
    """[heads] learned biases: a slot without a value, whose mass is the class `null`."""
