"""Measures the chain of a recorded step (hidden states, confidence and attention masses) and
sends its numbers to host memory, where the writer's thread takes them.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driftscope.trace.writer import TraceWriter
from driftscope_probes.buffers import ChainBuffers, DeviceClock, HostRing, Landing, Layout, fold
from driftscope_probes.cpu_kernels import Job, SideThread
from driftscope_probes.drafter import Drafter
from driftscope_probes.engine import DeviceStep, DraftCall, DraftStep, ScheduleReader
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels
from driftscope_probes.meter import Meter
from driftscope_probes.sampler import CHOICES
from driftscope_probes.settings import EAGER, SHADOW, Settings
from driftscope_probes.sink_search import SLOTS, SinkSearch
from driftscope_probes.step_record import Capture
from driftscope_probes.taps import ChainObserver, HookSwitch


class OptionalMasses:
    """[R, *shape] on the device, with a separate ring for host copies.

    The shape is [depths, layers, bins].
    """

    def __init__(self, shape: tuple[int, ...], requests: int, device: torch.device) -> None:
        self._shape, self._size = shape, math.prod(shape)
        self._requests, self._device = requests, device
        self._values: torch.Tensor | None = None
        self._ring: HostRing | None = None

    @property
    def nbytes(self) -> int:
        """Size on the device once it has been used, in bytes."""
        return self._requests * self._size * torch.float32.itemsize

    def take(self, batch: int) -> torch.Tensor:
        """Return [batch, *shape] float32, filled with NaN."""
        if self._values is None:
            self._values = torch.empty((self._requests, *self._shape), device=self._device)
            self._ring = HostRing(self._requests, self._size, self._device)
        return self._values[:batch].fill_(torch.nan)

    def hold(self, batch: int, event: Any) -> Landing | None:
        """Reserve host memory for what was last taken; `fill` writes to it."""
        assert self._ring is not None  # noqa: S101  after `take`
        return self._ring.hold(batch, self._size, event)

    def fill(self, landing: Landing, batch: int) -> None:
        """Copy what was last taken to the reserved host memory."""
        assert self._values is not None  # noqa: S101  after `take`
        landing.fill(self._values[:batch].flatten(1))

    def send(self, batch: int) -> Landing | None:
        """Start copying what was last taken to the host."""
        assert self._values is not None and self._ring is not None  # noqa: S101  after `take`
        return self._ring.send(self._values[:batch].flatten(1))


FIRST_WITH_DETAILS = 64
"""Number of recorded chains at the beginning that all carry masses by distance and near misses,
whatever the interval: an analysis needs 50 of them to tell whether attention drifts. Every rank
counts alike, since all record the same steps."""


class ChainMeasurement:
    """The chain of the step in progress, if that step is recorded.

    =====================  ====================================================================
    `begin(...)`           prepare the buffers for the draft that is about to run
    `measure()`            finish the buffers after the draft
    `forget()`             discard the chain
    =====================  ====================================================================
    """

    def __init__(
        self,
        drafter: Drafter,
        layout: Layout,
        guard: Guard,
        *,
        buffers: ChainBuffers,
        kernels: Kernels,
        meter: Meter,
        distances: OptionalMasses,
        carries_details: bytes,
        observer: ChainObserver,
        side_thread: SideThread,
        search: SinkSearch | None,
    ) -> None:
        """`layout` of a chain; the buffers' layout has a row for each query. `distances`:
        masses by distance; `carries_details`: whether a recorded step carries them, and near
        misses, beside the first steps, see `detail_choices`. `side_thread` measures masses while
        the engine goes on."""
        self._drafter, self.layout, self._guard = drafter, layout, guard
        self._buffers, self._observer = buffers, observer
        self.kernels, self.meter = kernels, meter
        self.distances, self._carries_details = distances, carries_details
        self._by_distance = meter.sorts_by_distance
        self._first_left = FIRST_WITH_DETAILS if any(carries_details) else 0
        self.has_details = False
        """Whether the chain in progress carries what only some chains do."""
        self.side_thread = side_thread
        self.search = search
        """Search for the sink set; None if the set is given or has been found."""
        self.without_masses = False
        """Whether no masses are measured, because the start-up witness found others."""
        self.forget()

    @property
    def device_bytes(self) -> int:
        """Most memory that the buffers take on the drafter's device, in bytes."""
        return self._buffers.nbytes + self.distances.nbytes + self.kernels.device_bytes

    def forget(self) -> None:
        """Discard the chain of the recorded step."""
        self.capture: Capture | None = None
        self._device_step: DeviceStep | None = None
        self.values: torch.Tensor | None = None
        """[B, width]: the chain's numbers, complete once `masses` was called."""
        self.masses: Callable[[], None] | None = None
        """Function that fills in the masses on the side thread; None if they are there."""
        self.has_distances = False
        """Whether `distances` holds this chain's masses by distance, complete as `values` is."""
        self.slot_weights: torch.Tensor | None = None
        """Weights for the sink search, which are measured instead of masses while it goes on."""

    def begin(
        self,
        step: DraftStep,
        chosen: npt.NDArray[np.bool_] | None,
        device_step: DeviceStep,
        number: int,
    ) -> None:
        """Prepare to measure the draft that is about to run, of the step with this number."""
        carries = self._first_left > 0 or self._carries_details[number % CHOICES] == 1
        self.has_details = carries and self.search is None
        self.has_distances = self.has_details and self._by_distance and not self.without_masses
        if self.has_details and self._first_left > 0:
            self._first_left -= len(step.requests)
        self._device_step = device_step
        self.capture = Capture(step, device_step.prompt_tokens, chosen)
        self.restart()

    def restart(self) -> None:
        """Clear the buffers for the draft that is about to run."""
        at, capture = self._device_step, self.capture
        if at is None or capture is None:
            return
        queries = at.rows.shape[0] // len(capture.step.requests)
        position = at.position
        position = position if queries == 1 else position.repeat_interleave(queries)
        self.kernels.begin(at.rows, position)

    def measure(self, *, at_once: bool = False) -> None:
        """Finish the buffers after the chain is drafted. The masses are included if they are wanted
        `at_once` or cannot be measured on the side thread."""
        at, capture = self._device_step, self.capture
        if at is None or capture is None or self._guard.failed:
            return
        step, batch = capture.step, len(capture.step.requests)
        rows = at.rows.shape[0]
        queries = rows // batch
        self.kernels.finish()
        capture.execution = self._observer.execution(step.k // queries)
        if self.without_masses:
            capture.sought = True
        elif self.search is not None:
            capture.sought = True
            self.slot_weights = self.meter.slot_weights(step, at)
        else:
            distances = self.distances.take(batch) if self.has_distances else None
            plan = self.meter.plan(step, at, distances)
            if plan is None:
                self.meter.measure(step, at, distances)
            elif at_once or plan.run_inline or queries > 1:
                plan.fill()
            else:
                self.masses = plan.fill
        self.values = self._buffers.values[:rows]
        if self.layout.depths != self._buffers.layout.depths:
            self.values = fold(self.values, batch, self._buffers.layout, self.layout)

    def take_sinks(self, search: SinkSearch) -> None:
        """End the search if it has found the sink set; called on the serving thread."""
        if search.sinks is not None:
            self.meter.set_sinks(search.sinks.slots)
            self.search = None

    def wait_for_keys(self, scheduled: Any, schedules: ScheduleReader) -> None:
        """Wait for the side thread if what the engine has `scheduled` may change the keys that it
        reads."""
        if self._shares_cache or schedules.writes_free_blocks(scheduled):
            self.side_thread.join()

    @functools.cached_property
    def _shares_cache(self) -> bool:
        return self._drafter.shares_cache()


class HostTransfer:
    """The rings of one drafter. A chain that finds no free slot is dropped and counted."""

    def __init__(
        self,
        drafter: Drafter,
        layout: Layout,
        settings: Settings,
        writer: TraceWriter,
        chain: ChainMeasurement,
    ) -> None:
        """`layout` of a chain; `chain` measures those that are sent."""
        self._chain, self._writer, self._keep_ids = chain, writer, settings.token_ids
        self._side_guard = Guard(writer, test_raise=settings.test_raise)
        requests, device = drafter.max_requests, drafter.device
        self._ring = HostRing(requests, layout.width, device)
        self._ids_ring = HostRing(requests, 2 * drafter.k, device)
        self._weights_ring = HostRing(requests, SLOTS + 1, device) if chain.search else None

    def send(self, drafts: Any, shadow: Any) -> None:
        """Start copying the chain that was measured, without waiting.

        `drafts` [B, K] are the served tokens, `shadow` those of the measured chain if that was
        another one.
        """
        chain, capture, values = self._chain, self._chain.capture, self._chain.values
        if capture is None or values is None:
            return
        batch = values.shape[0]
        if chain.masses is None:
            capture.values = self._ring.send(values)
            if chain.has_distances:
                capture.distance_mass = chain.distances.send(batch)
            if chain.slot_weights is not None and self._weights_ring is not None:
                capture.slot_weights = self._weights_ring.send(chain.slot_weights)
        elif (rows := self._ring.hold(batch, values.shape[1], job := Job())) is not None:
            by_distance = chain.distances.hold(batch, job) if chain.has_distances else None
            capture.values, capture.distance_mass = rows, by_distance
            fill = functools.partial(self._fill, chain.masses, values, rows, by_distance)
            succeeds = functools.partial(self._side_guard.succeeds, "masses", fill)
            chain.side_thread.post(job, succeeds)
        if self._ring.filling:
            self._writer.flush_soon()
        if capture.values is None:
            self._writer.count_dropped("ring_full", batch)
        elif self._keep_ids or shadow is not None:
            both = torch.cat([drafts[:batch], (drafts if shadow is None else shadow)[:batch]], -1)
            capture.ids = self._ids_ring.send(both.to(torch.int32).view(torch.float32))

    def _fill(
        self,
        masses: Callable[[], None],
        values: torch.Tensor,
        rows: Landing,
        by_distance: Landing | None,
    ) -> None:
        """Measure the masses on the side thread, and fill the slots reserved for them."""
        masses()
        rows.fill(values)
        if by_distance is not None:
            self._chain.distances.fill(by_distance, len(values))


class RecordedDraft:
    """Drafts in one of the recording modes.

    ============  ===========================================================================
    `in-graph`    the served chain is measured
    `eager`       the chain is drafted without CUDA graphs, measured and served
    `shadow`      a chain is drafted without CUDA graphs and measured, then another is served
    ============  ===========================================================================
    """

    def __init__(
        self,
        mode: str,
        chain: ChainMeasurement,
        switch: HookSwitch,
        guard: Guard,
        clock: DeviceClock,
    ) -> None:
        self._mode, self._chain, self._switch = mode, chain, switch
        self._guard, self._clock = guard, clock

    def run(self, call: DraftCall) -> tuple[Any, Any, float]:
        """Return the served tokens [B, K], the shadow's if there is one, and the time that drafting
        the served ones took, in seconds."""
        mode, shadow = self._mode, None
        if mode == SHADOW:
            shadow = self._guard.run("shadow", self._draft_shadow, call.without_graphs)
        timed, begun = self._clock.on, time.perf_counter()
        if timed:
            self._clock.mark()
        drafts = call.without_graphs() if mode == EAGER else call.serve()
        if timed:
            self._clock.mark()
        return drafts, shadow, time.perf_counter() - begun

    def _draft_shadow(self, without_graphs: Callable[[], Any]) -> Any:
        """Measure a chain that is not served, and stop recording before the served one."""
        drafts = without_graphs().clone()
        self._switch.flush_notes()
        self._chain.measure(at_once=True)
        self._chain.kernels.skip()
        self._switch.active = False
        return drafts
