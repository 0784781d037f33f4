"""How one attention layer of a drafter attends."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionKind:
    """How one layer attends, read off the layer itself."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    """Slots that a query sees, itself included; None: all."""
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap); 0: as they are."""
    sinks: torch.Tensor | None = None
    """[heads] learned biases: a slot without a value, whose mass is the class `null`."""
