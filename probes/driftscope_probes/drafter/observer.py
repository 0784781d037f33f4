"""What stands between a hook on an attention layer and the taps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

Observer = Callable[[torch.Tensor, torch.Tensor | None], None]
"""Gets the queries [rows, heads, head_size] and the log-sum-exp [heads, rows], if there is one."""


class Switch(Protocol):
    """What decides whether a hook runs."""

    @property
    def should_record(self) -> bool:
        """Run it now."""

    @property
    def observe(self) -> Callable[..., Any]:
        """Called with the hook's name, what it runs, and the arguments of that: runs it guarded."""
