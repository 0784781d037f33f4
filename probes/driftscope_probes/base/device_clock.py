"""Times on the device: CUDA events around drafter and probe, read by the writer's thread."""

from __future__ import annotations

from typing import Any

import torch


class DeviceClock:
    """Marks of one step at a time; nothing on a CPU, where the host's clock says it all."""

    def __init__(self, device: torch.device) -> None:
        self.on = device.type == "cuda"
        """Whether it can tell anything."""
        self._marks: list[Any] = []

    def start(self) -> None:
        """Forget the step before."""
        self._marks = []

    def mark(self) -> None:
        """Remember this point of the device's work."""
        if self.on:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)

    def take(self) -> Marks:
        """The marks of the step."""
        if not self._marks:
            return NO_MARKS
        marks, self._marks = Marks(self._marks), []
        return marks


class Marks:
    """Points of a step's work on the device."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def __len__(self) -> int:
        return len(self._events)

    def between(self, first: int, last: int) -> float | None:
        """Seconds between two marks, None without them; waits until the device is there."""
        if len(self._events) <= max(first, last):
            return None
        self._events[last].synchronize()
        return float(self._events[first].elapsed_time(self._events[last])) / 1000


NO_MARKS = Marks([])
"""Of a step on a CPU."""
