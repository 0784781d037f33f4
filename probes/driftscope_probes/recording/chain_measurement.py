"""Measures the chain of a recorded step: hidden states, confidence and attention masses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driftscope_probes.base.chain_buffers import ChainBuffers, Layout, fold
from driftscope_probes.base.guard import Guard
from driftscope_probes.base.side_thread import SideThread
from driftscope_probes.base.step_view import DeviceStep, DraftStep
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.masses.meter import Meter
from driftscope_probes.masses.sink_search import SinkSearch
from driftscope_probes.recording.optional_masses import OptionalMasses
from driftscope_probes.steps.distance_choice import CHOICES
from driftscope_probes.steps.step_record import Capture
from driftscope_probes.steps.step_schedule import ScheduleReader
from driftscope_probes.taps.chain_taps import ChainObserver
from driftscope_probes.taps.kernels import Kernels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasurementParts:
    """The parts that measure a drafter's chains."""

    buffers: ChainBuffers
    kernels: Kernels
    meter: Meter
    heads: OptionalMasses
    """Masses by head."""
    distances: OptionalMasses
    """Masses by distance."""
    carries_distances: bytes
    """Whether a recorded step carries masses by distance, see `distance_choices`."""
    observer: ChainObserver
    side_thread: SideThread
    """Measures masses while the engine goes on."""


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
        parts: MeasurementParts,
        guard: Guard,
        *,
        per_head: bool,
        search: SinkSearch | None,
    ) -> None:
        """`layout` of a chain; the buffers' layout has a row for each query."""
        self._drafter, self._layout, self._guard = drafter, layout, guard
        self._buffers, self._observer = parts.buffers, parts.observer
        self.kernels, self.meter, self.heads = parts.kernels, parts.meter, parts.heads
        self.distances, self._carries_distances = parts.distances, parts.carries_distances
        self.side_thread = parts.side_thread
        self.per_head = per_head
        """Whether masses are also measured by head; may change at run time."""
        self.search = search
        """Search for the sink set; None if the set is given or has been found."""
        self.forget()

    @property
    def device_bytes(self) -> int:
        """Most memory that the buffers take on the drafter's device, in bytes."""
        parts = (self._buffers.nbytes, self.heads.nbytes, self.distances.nbytes)
        return sum(parts) + self.kernels.device_bytes

    def forget(self) -> None:
        """Discard the chain of the recorded step."""
        self.capture: Capture | None = None
        self._device_step: DeviceStep | None = None
        self.values: torch.Tensor | None = None
        """[B, width]: the chain's numbers, complete once `masses` was called."""
        self.masses: Callable[[], None] | None = None
        """Function that fills in the masses on the side thread; None if they are there."""
        self.has_head_masses = False
        """Whether `heads` holds this chain's masses by head, complete as `values` is."""
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
        carries = self._carries_distances[number % CHOICES] == 1
        self.has_distances = carries and self.search is None
        self._device_step = device_step
        self.capture = Capture(step, device_step.prompt_tokens, chosen)
        queries = len(device_step.rows) // len(step.requests)
        position = device_step.position
        position = position if queries == 1 else position.repeat_interleave(queries)
        self.kernels.begin(device_step.rows, position)

    def measure(self, *, at_once: bool = False) -> None:
        """Finish the buffers after the chain is drafted. The masses are included if they are wanted
        `at_once` or cannot be measured on the side thread."""
        at, capture = self._device_step, self.capture
        if at is None or capture is None or self._guard.failed:
            return
        step, batch = capture.step, len(capture.step.requests)
        queries = len(at.rows) // batch
        self.kernels.finish()
        capture.execution = self._observer.execution(step.k // queries)
        if self.search is not None:
            capture.sought = True
            self.slot_weights = self.meter.slot_weights(step, at)
        else:
            self.has_head_masses = self.per_head
            heads = self.heads.take(batch) if self.has_head_masses else None
            distances = self.distances.take(batch) if self.has_distances else None
            plan = self.meter.plan(step, at, heads, distances)
            if plan is None:
                self.meter.measure(step, at, heads, distances)
            elif at_once or plan.run_inline or queries > 1:
                plan.fill()
            else:
                self.masses = plan.fill
        self.values = self._buffers.values[: len(at.rows)]
        if self._layout.depths != self._buffers.layout.depths:
            self.values = fold(self.values, batch, self._buffers.layout, self._layout)

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
        return self._drafter.shares_cache
