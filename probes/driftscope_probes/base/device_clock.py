"""Device times: CUDA events around drafter and probe, read on the writer's thread."""

from __future__ import annotations

from typing import Any

import torch


class DeviceClock:
    """Marks of one step at a time; does nothing on a CPU, where the host's clock suffices."""

    def __init__(self, device: torch.device) -> None:
        self.on = device.type == "cuda"
        """Whether marks are recorded: True on a CUDA device."""
        self._marks: list[Any] = []

    def start(self) -> None:
        """Discard the marks of the previous step."""
        self._marks = []

    def mark(self) -> None:
        """Mark the current point in the device's work."""
        if self.on:
            # Waiting for it must not take the writer's thread a core.
            event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)

    def take(self) -> Marks:
        """Return the marks of the step and clear them."""
        if not self._marks:
            return NO_MARKS
        marks, self._marks = Marks(self._marks), []
        return marks


class Marks:
    """Points in time of one step's work on the device."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def __len__(self) -> int:
        return len(self._events)

    def between(self, first: int, last: int) -> float | None:
        """Return the seconds between two marks, None without them; wait for the device."""
        if len(self._events) <= max(first, last):
            return None
        self._events[last].synchronize()
        return float(self._events[first].elapsed_time(self._events[last])) / 1000


NO_MARKS = Marks([])
"""Marks of a step on a CPU: none."""
