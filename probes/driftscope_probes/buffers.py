"""Memory of recorded chains: a row of numbers per request on the device, and the ring on the
host that it is copied to.

Shapes on the device never change, so a CUDA graph can record the taps that write there. A row
holds everything that is recorded of a chain, so that one copy of the first B rows moves all of
it to the host.

On a CPU the probe's cost is that of its many small operations. Positions, masks and rows of
figures are therefore handled there as NumPy arrays that share the tensors' memory, because
NumPy's operations take a fraction of torch's time; on a GPU they stay tensors. Formulas written
with operators and `any` work for both.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import MASSES

LEAST = -80.0
"""Lower bound of exponents: float32 exp is ten times slower for -inf and below about -87."""


Array = Any
"""A tensor on a GPU, a NumPy array on a CPU."""


def array_of(x: torch.Tensor) -> Array:
    """Return a NumPy array that shares the tensor's memory on a CPU, else the tensor."""
    return x.numpy() if x.device.type == "cpu" else x


def tensor_of(x: Array) -> torch.Tensor:
    """Return a tensor that shares the array's memory."""
    tensor: torch.Tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    return tensor


def count_up(n: int, like: Array) -> Array:
    """Return 0 to n - 1 as int64, on the device of `like`."""
    return np.arange(n) if isinstance(like, np.ndarray) else torch.arange(n, device=like.device)


def empty(shape: tuple[int, ...], like: Array, dtype: str = "float32") -> Array:
    """Return an uninitialised array on the device of `like`; both libraries know `dtype`."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=dtype)
    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def lesser(x: Array, y: Array) -> Array:
    """Return the element-wise minimum."""
    return np.minimum(x, y) if isinstance(x, np.ndarray) else torch.minimum(x, y)


"""Columns of the attention classes, in the order used by every array of masses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Position of each quantity in a row of float32 numbers."""

    depths: int
    """Largest chain length."""
    layers: int
    """Number of drafter layers whose attention is measured."""
    aux: int
    """Number of captured target layers."""

    def column(self, name: str) -> int:
        """Return the index of a quantity's first number; per-depth numbers follow by depth."""
        return self.columns[name][0]

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """Mapping from name to (index of the first number, count of numbers)."""
        columns, at = {}, 0
        for name, size in self._sizes():
            columns[name] = (at, size)
            at += size
        return columns

    @property
    def width(self) -> int:
        """Count of numbers in a row."""
        return sum(size for _, size in self._sizes())

    def _sizes(self) -> Sequence[tuple[str, int]]:
        return (
            *((name, self.depths) for name in PER_DEPTH),
            ("aux_rms", self.aux),
            ("aux_norm_rms", self.aux),
            ("fc_rms", 1),
            ("position", 1),  # an int32 stored bit for bit
            ("masses", self.depths * self.layers * len(MASSES)),  # [depths, layers, 5]
        )


def fold(values: torch.Tensor, batch: int, block: Layout, chain: Layout) -> torch.Tensor:
    """Combine rows of single queries, [B * k, block.width], into rows of chains, [B, chain.width].

    A quantity that exists once per chain is taken from the chain's first query.
    """
    k = len(values) // batch
    by_query = values.view(batch, k, -1)
    out = values.new_full((batch, chain.width), torch.nan)
    for name, (at, size) in block.columns.items():
        first = chain.column(name)
        if chain.columns[name][1] == size:
            out[:, first : first + size] = by_query[:, 0, at : at + size]
        else:
            out[:, first : first + k * size] = by_query[..., at : at + size].flatten(1)
    return out


class ChainBuffers:
    """Static tensors of one drafter, on its device, for up to R requests."""

    def __init__(self, layout: Layout, requests: int, device: torch.device) -> None:
        self.layout, self.requests, self.device = layout, requests, device
        with torch.device(device):
            self.values = torch.full((requests, layout.width), torch.nan)
            """[R, width] float32: the rows."""
            self.gate = torch.zeros(2, dtype=torch.int32)
            """[2] int32: 1 if the chains in progress are recorded, else 0; and their number."""
            self.depth = torch.zeros(requests, dtype=torch.int32)
            """[R] int32: depth of the forward in progress."""
            self.rows = torch.zeros(requests, dtype=torch.int64)
            """[R] int64: each request's row in the depth-1 forward; row b at later depths."""
        self.queries: dict[str, torch.Tensor] = {}
        """Layer -> [R, depths, heads * head_size] queries in the drafter's dtype."""
        self.lse: dict[str, torch.Tensor] = {}
        """Layer -> [R, depths, heads] float32: log-sum-exp of the serving kernel itself."""
        self._columns = layout.columns
        self._ints = array_of(self.values.view(torch.int32))

    def add_layer(self, name: str, query_size: int, heads: int, dtype: torch.dtype) -> None:
        """Allocate the buffers for a layer's queries and log-sum-exp."""
        shape = (self.requests, self.layout.depths)
        self.queries[name] = torch.zeros((*shape, query_size), dtype=dtype, device=self.device)
        self.lse[name] = torch.full((*shape, heads), torch.nan, device=self.device)

    @property
    def nbytes(self) -> int:
        """Size of all tensors, in bytes."""
        parts = (self.values, self.gate, self.depth, self.rows)
        return sum(x.nbytes for x in (*parts, *self.queries.values(), *self.lse.values()))

    def part(self, name: str, batch: int) -> torch.Tensor:
        """Return a [batch, numbers] view of a quantity."""
        at, size = self._columns[name]
        return self.values[:batch, at : at + size]

    def put_int(self, name: str, values: torch.Tensor) -> None:
        """Write integers [B] to a quantity of one number per row, as int32 bit for bit."""
        at, _ = self._columns[name]
        self._ints[: len(values), at] = array_of(values)


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

    def take(self) -> DeviceMarks:
        """Return the marks of the step and clear them."""
        if not self._marks:
            return NO_MARKS
        marks, self._marks = DeviceMarks(self._marks), []
        return marks


class DeviceMarks:
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


NO_MARKS = DeviceMarks([])
"""Marks of a step on a CPU: none."""
