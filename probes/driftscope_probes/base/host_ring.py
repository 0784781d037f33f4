"""Host memory that recorded chains are copied to: a bounded ring of preallocated buffers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

SLOTS = 128
"""Number of steps that may wait for the writer. It empties them several times a second; a step that
finds no free slot is dropped and counted."""


class Landing:
    """A copy in progress to one slot, which becomes free once the copy is taken or discarded."""

    def __init__(self, ring: HostRing, slot: int, shape: tuple[int, int], event: Any) -> None:
        self._ring, self._slot, self._shape, self._event = ring, slot, shape, event
        self._taken = False

    def __del__(self) -> None:
        """Free the slot if its rows were never taken, such as those of a full queue. Copies run in
        stream order, so that the next one may start at once. A slot that a job may still fill
        although it was given up is never used again."""
        if not self._taken and not getattr(self._event, "given_up", False):
            self._ring.free(self._slot)

    def fill(self, values: torch.Tensor) -> None:
        """Copy `values` to a slot reserved with `HostRing.hold`, on the host."""
        rows, numbers = self._shape
        self._ring.landed(self._slot)[:rows, :numbers] = values.numpy()

    @property
    def spent_s(self) -> float:
        """CPU time that filling the slot took, in seconds; valid once the slot is filled."""
        return float(getattr(self._event, "spent_s", 0.0))

    @property
    def failed(self) -> bool:
        """Whether the job that fills the slot failed, so that nothing can be taken. Waits."""
        if self._event is None:
            return False
        self._event.synchronize()
        return bool(getattr(self._event, "failed", False))

    def take(self) -> npt.NDArray[np.float32]:
        """Wait for the copy, free the slot, return the values; called once, by the writer."""
        if self._event is not None:
            self._event.synchronize()
        rows, numbers = self._shape
        values = self._ring.landed(self._slot)[:rows, :numbers].copy()
        self._taken = True
        self._ring.free(self._slot)
        return values


class HostRing:
    """Slots of [R, width] float32, in pinned memory if the device is a GPU."""

    def __init__(self, requests: int, width: int, device: torch.device, slots: int = SLOTS) -> None:
        self._cuda = device.type == "cuda"
        self.slots = torch.empty(slots, requests, width, pin_memory=self._cuda)
        self._host = self.slots.numpy()
        self._free, self._lock = list(range(slots)), threading.RLock()

    def send(self, values: torch.Tensor) -> Landing | None:
        """Start copying [B, at most width] without waiting; return None if every slot is taken."""
        slot = self._reserve()
        if slot is None:
            return None
        rows, numbers = values.shape
        event = None
        if self._cuda:
            self.slots[slot, :rows, :numbers].copy_(values, non_blocking=True)
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record()
        else:
            self._host[slot, :rows, :numbers] = values.numpy()
        return Landing(self, slot, (rows, numbers), event)

    def hold(self, rows: int, numbers: int, event: Any) -> Landing | None:
        """Reserve a slot that is filled before `event` occurs; None if every slot is taken."""
        slot = self._reserve()
        return None if slot is None else Landing(self, slot, (rows, numbers), event)

    def _reserve(self) -> int | None:
        with self._lock:
            return self._free.pop() if self._free else None

    @property
    def filling(self) -> bool:
        """Whether more than half of the slots are taken."""
        return len(self._free) < self.slots.shape[0] // 2

    def landed(self, slot: int) -> npt.NDArray[np.float32]:
        """Return the [R, width] contents of a slot whose copy has finished."""
        rows: npt.NDArray[np.float32] = self._host[slot]
        return rows

    def free(self, slot: int) -> None:
        """Return a slot to the free list."""
        with self._lock:
            self._free.append(slot)
