"""Interfaces between a hook on an attention layer and the taps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

Observer = Callable[[torch.Tensor, torch.Tensor | None], None]
"""Function that receives the queries [rows, heads, head_size] and the log-sum-exp [heads, rows], or
None if there is none."""


class Switch(Protocol):
    """Decides whether a hook runs."""

    @property
    def should_record(self) -> bool:
        """Whether a hook that fires now must run."""

    @property
    def observe(self) -> Callable[..., Any]:
        """Function that runs a hook guarded; takes the hook's name, action and arguments."""
