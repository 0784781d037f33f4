"""The state of an unfinished training, so that an interrupted training can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch


class Stateful(Protocol):
    """A module or an optimizer."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything that changes in training."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Restore the result of `state_dict`."""
        ...


class Checkpoint:
    """A file with the number of steps taken and the state of the parts after them.

    `every` 0: no checkpoint is written, as in the shipped recipe, whose half hour is not worth the
    disk.
    """

    def __init__(self, path: Path, every: int, parts: Mapping[str, Stateful]) -> None:
        self._path, self._every, self._parts = path, every, parts

    def restore(self, device: torch.device) -> int:
        """Restore the parts; return the number of steps that they have taken, 0 without a file."""
        if not self._every or not self._path.is_file():
            return 0
        state = torch.load(self._path, map_location=device, weights_only=True)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        return int(state["steps"])

    def save(self, taken: int, steps: int) -> None:
        """Save the state after `taken` of `steps`, at multiples of `every` and at the end."""
        if not self._every or (taken % self._every and taken != steps):
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        torch.save({"steps": taken, **{n: p.state_dict() for n, p in self._parts.items()}}, partial)
        partial.replace(self._path)
