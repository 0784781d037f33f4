"""Where recorded chains land on the host: a bounded ring of preallocated buffers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

SLOTS = 128
"""Steps that may wait for the writer. It empties them several times a second; what finds no free
slot is dropped and counted."""


class Landing:
    """One copy on its way to a slot, which is free again once it is taken or forgotten."""

    def __init__(self, ring: HostRing, slot: int, shape: tuple[int, int], event: Any) -> None:
        self._ring, self._slot, self._shape, self._event = ring, slot, shape, event
        self._taken = False

    def __del__(self) -> None:
        """Rows that were never made, such as those of a full queue, must not cost a slot. Copies
        are in the order of the stream, so that the next one may start at once. A slot that a job
        which was given up may still fill is never used again."""
        if not self._taken and not getattr(self._event, "given_up", False):
            self._ring.free(self._slot)

    def fill(self, values: torch.Tensor) -> None:
        """Of a slot that was held: copy it on the host."""
        rows, numbers = self._shape
        self._ring.landed(self._slot)[:rows, :numbers] = values.numpy()

    @property
    def spent_s(self) -> float:
        """Time of a core that filling the slot has taken, once it is filled."""
        return float(getattr(self._event, "spent_s", 0.0))

    @property
    def failed(self) -> bool:
        """Waits; whether there is nothing to take, because what should fill the slot has failed."""
        if self._event is None:
            return False
        self._event.synchronize()
        return bool(getattr(self._event, "failed", False))

    def take(self) -> npt.NDArray[np.float32]:
        """Wait for the copy, free the slot; called once, on the writer's thread."""
        if self._event is not None:
            self._event.synchronize()
        rows, numbers = self._shape
        values = self._ring.landed(self._slot)[:rows, :numbers].copy()
        self._taken = True
        self._ring.free(self._slot)
        return values


class HostRing:
    """Slots of [R, width] float32, pinned where the device is a GPU."""

    def __init__(self, requests: int, width: int, device: torch.device, slots: int = SLOTS) -> None:
        self._cuda = device.type == "cuda"
        self.slots = torch.empty(slots, requests, width, pin_memory=self._cuda)
        self._host = self.slots.numpy()
        self._free, self._lock = list(range(slots)), threading.RLock()

    def send(self, values: torch.Tensor) -> Landing | None:
        """Start copying [B, at most width] without waiting; None when every slot is taken."""
        slot = self._reserve()
        if slot is None:
            return None
        rows, numbers = values.shape
        event = None
        if self._cuda:
            self.slots[slot, :rows, :numbers].copy_(values, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        else:
            self._host[slot, :rows, :numbers] = values.numpy()
        return Landing(self, slot, (rows, numbers), event)

    def hold(self, rows: int, numbers: int, event: Any) -> Landing | None:
        """A slot to be filled before `event` happens; None when every slot is taken."""
        slot = self._reserve()
        return None if slot is None else Landing(self, slot, (rows, numbers), event)

    def _reserve(self) -> int | None:
        with self._lock:
            return self._free.pop() if self._free else None

    @property
    def filling(self) -> bool:
        """Whether most slots are taken."""
        return len(self._free) < self.slots.shape[0] // 2

    def landed(self, slot: int) -> npt.NDArray[np.float32]:
        """[R, width]: what a copy that is over has left in a slot."""
        found: npt.NDArray[np.float32] = self._host[slot]
        return found

    def free(self, slot: int) -> None:
        """Give a slot back."""
        with self._lock:
            self._free.append(slot)
