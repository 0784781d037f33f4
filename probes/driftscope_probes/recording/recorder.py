"""Records one worker's draft steps: a runner module calls it; it calls the taps and the writer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driftscope.trace.write.writer import TraceWriter
from driftscope.vocabulary import SINK_SOUGHT
from driftscope_probes.base.chain_buffers import ChainBuffers, Layout, fold
from driftscope_probes.base.device_clock import NO_MARKS, DeviceClock
from driftscope_probes.base.guard import CORE, Guard
from driftscope_probes.base.host_ring import HostRing
from driftscope_probes.base.settings import EAGER, IN_GRAPH, SHADOW, Settings
from driftscope_probes.base.side_thread import Job, SideThread
from driftscope_probes.base.step_view import DeviceStep, DraftCall, DraftStep
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.masses.meter import Meter
from driftscope_probes.masses.sink_search import SLOTS, SinkSearch
from driftscope_probes.recording.chain_encoder import ChainEncoder, EncoderOptions
from driftscope_probes.recording.per_head_masses import PerHeadMasses
from driftscope_probes.recording.request_selection import RequestSelection
from driftscope_probes.recording.sampler import AIM, SEEN, Sampler
from driftscope_probes.recording.step_record import Capture
from driftscope_probes.recording.step_schedule import NO_LENGTHS, ScheduleReader
from driftscope_probes.taps.kernels import Kernels, TorchKernels
from driftscope_probes.taps.taps import Taps


class Recorder:
    """Records steps: call `step_started`, perhaps `draft`, `step_ended` for each, in order."""

    def __init__(
        self,
        drafter: Drafter,
        settings: Settings,
        writer: TraceWriter,
        *,
        schedules: ScheduleReader,
        masses_only: bool = False,
    ) -> None:
        """`schedules` reads what the engine schedules. `masses_only`: another rank writes
        everything that does not depend on attention heads.

        Raises ProbeError for an unsupported attention backend.
        """
        self._settings, self._writer = settings, writer
        self._schedules, self._new_requests = schedules, schedules.new_requests
        self._guard = Guard(writer, test_raise=settings.test_raise, adds_to=(writer,))
        self._told_s, self._core_s = 0.0, CORE.probe_s
        """Hook time attributed to finished steps, in seconds: the worker's, the engine core's."""
        self._drafter = drafter
        self._beside = SideThread()
        self._beside_guard = Guard(writer, test_raise=settings.test_raise)
        layout = Layout(depths=drafter.k, layers=len(drafter.layers), aux=drafter.aux_states)
        queries = drafter.queries
        self._layout = layout
        self._buffers = ChainBuffers(
            replace(layout, depths=layout.depths // queries),
            drafter.max_requests * queries,
            drafter.device,
        )
        on_gpu = drafter.device.type == "cuda"
        self._kernels = _kernels(self._buffers, on_gpu)
        self.meter = Meter(
            drafter,
            self._buffers,
            settings.sink_slots,
            use_lse=settings.strategy != "keys",
            use_triton=on_gpu,
        )
        seeks = settings.sink_source == SINK_SOUGHT and self.meter.heads > 0
        self.search = SinkSearch() if seeks else None
        """Search for the sink set; None if the set is given or has been found."""
        self.taps = Taps(
            drafter,
            self._kernels,
            self._guard,
            in_graph=on_gpu and settings.recording == IN_GRAPH,
        )
        self.sampler = Sampler(every=settings.every, budget=settings.budget, seen=SEEN, aim=AIM)
        self.per_head = settings.per_head
        self.selection = RequestSelection(settings.labels)
        self.control: object | None = None
        """Object that changes this recorder at run time, kept for callers over RPC."""
        self._heads = PerHeadMasses(layout, drafter.max_requests, drafter.device, self.meter.heads)
        self._ring = HostRing(drafter.max_requests, layout.width, drafter.device)
        self._weights_ring = (
            HostRing(drafter.max_requests, SLOTS + 1, drafter.device) if self.search else None
        )
        self._ids_ring = HostRing(drafter.max_requests, 2 * drafter.k, drafter.device)
        self._clock = DeviceClock(drafter.device)
        options = EncoderOptions(
            heads=self.meter.heads,
            strategy=self.meter.strategy,
            max_slots=drafter.max_slots - drafter.kind.lead,
            aliases=self.taps.aliased_columns,
            masses_only=masses_only,
            compare_ids=settings.recording == SHADOW,
            keep_ids=settings.token_ids,
        )
        self._encoder = ChainEncoder(layout, options, writer, self.sampler, schedules, self.search)
        self._encode = self._encoder.handed_over
        self._number = 0
        self._started, self._draft_s = time.perf_counter(), 0.0
        self._scheduled: Any = None
        self._lengths: Mapping[str, int] = NO_LENGTHS
        self._k: int | None = None
        """Depths of the draft in progress; None before the drafter runs."""
        self._awake = True
        """Whether the taps are installed, or the gate of their kernels may be open."""
        self._forget()

    def step_started(self, scheduled: Any = None) -> None:
        """Start a step: the target model is about to run what the engine has `scheduled`."""
        self._started = time.perf_counter()
        self._scheduled, self._lengths = scheduled, NO_LENGTHS
        self._k, self._draft_s = None, 0.0
        if self._capture is not None:
            self._forget()
        if self._clock.on:
            self._clock.start()
        if self._beside.busy:
            self._guard.run("join", self._on_blocks_changing, scheduled)
        if scheduled is not None and getattr(scheduled, self._new_requests, True):
            self._guard.run("step_started", self._on_step_started, scheduled)

    def draft(self, call: DraftCall) -> Any:
        """Run the drafter, recorded if the step is sampled; return [B, K] int tokens."""
        if self._beside.busy:  # drafter and taps are about to write
            self._guard.run("join", self._beside.join)
        self._guard.run("draft_started", self._on_draft_started, call)
        if self.taps.active:
            return self._recorded(call)
        if self._clock.on:
            self._clock.mark()
        begun = time.perf_counter()
        drafts = call.serve()
        self._draft_s = time.perf_counter() - begun
        if self._clock.on:
            self._clock.mark()
        return drafts

    def _recorded(self, call: DraftCall) -> Any:
        how, shadow = self._settings.recording, None
        if how == SHADOW:
            shadow = self._guard.run("shadow", self._on_shadow, call.without_graphs)
        timed, begun = self._clock.on, time.perf_counter()
        if timed:
            self._clock.mark()
        drafts = call.without_graphs() if how == EAGER else call.serve()
        if timed:
            self._clock.mark()
        self._draft_s = time.perf_counter() - begun
        if self.taps.active or shadow is not None:
            self.taps.flush_notes()
            self._guard.run("draft_ended", self._on_draft_ended, drafts, shadow)
        self.taps.active = False
        return drafts

    def step_ended(self, requests: int) -> None:
        """Finish the step and pass it to the writer."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", self._on_step_ended, requests, step_s)

    def close(self) -> None:
        """Remove the taps and seal the trace."""
        self.taps.detach()
        self._guard.run("join", self._beside.join)
        self._writer.close()

    def _on_step_started(self, scheduled: Any) -> None:
        self.selection.learn(self._schedules.labels(scheduled))
        self._lengths = self._schedules.prompt_lengths(scheduled)

    def _on_blocks_changing(self, scheduled: Any) -> None:
        if self._shares_cache or self._schedules.writes_free_blocks(scheduled):
            self._beside.join()

    @functools.cached_property
    def _shares_cache(self) -> bool:
        return self._drafter.shares_cache

    def _forget(self) -> None:
        """Discard the state of the recorded step."""
        self._capture: Capture | None = None
        self._at: DeviceStep | None = None
        self._masses: Callable[[], None] | None = None
        """Function that measures the masses on the side thread."""
        self.taps.active = False

    def _on_draft_started(self, call: DraftCall) -> None:
        self._k = k = int(call.k)
        if self.search is not None:
            self._take_found_sinks(self.search)
        if k > 0 and self.sampler.take():  # counted by every rank, for all requests
            step = call.step()
            chosen = self.selection.chosen(step.requests)
            if chosen is None or chosen.any():
                self._begin(step, chosen, call)
                return
        if self._awake:
            self._awake = False
            self.taps.serving()
            self._kernels.skip()
            self.taps.uninstall()

    def _begin(
        self, step: DraftStep, chosen: npt.NDArray[np.bool_] | None, call: DraftCall
    ) -> None:
        """Prepare to record the draft that is about to run."""
        self._awake = True
        self.taps.serving()
        self.taps.install()
        self._at = at = call.on_device()
        self._capture = Capture(step, at.prompt_tokens, chosen)
        rows = len(at.rows)
        self._buffers.values[:rows].fill_(torch.nan)
        self.meter.forget(rows)
        self._buffers.rows[:rows] = at.rows
        self._kernels.begin(rows)
        self.taps.active = True

    def _take_found_sinks(self, search: SinkSearch) -> None:
        if search.found is not None:
            self.meter.set_sinks(search.found.slots)
            self.search = None

    def _on_shadow(self, without_graphs: Callable[[], Any]) -> Any:
        """Measure a chain that is not served, and stop recording before the served one."""
        drafts = without_graphs().clone()
        self.taps.flush_notes()
        self._measure(at_once=True)
        self._kernels.skip()
        self.taps.active = False
        return drafts

    def _on_draft_ended(self, drafts: Any, shadow: Any) -> None:
        if shadow is None:
            self._measure()
        at, capture = self._at, self._capture
        if at is None or capture is None or self._guard.failed:
            return
        batch = len(capture.step.requests)
        values = self._buffers.values[:batch]
        if self._layout.depths != self._buffers.layout.depths:
            rows = self._buffers.values[: len(at.rows)]
            values = fold(rows, batch, self._buffers.layout, self._layout)
        self._send(values, capture)
        if self._ring.filling:
            self._writer.flush_soon()
        if capture.values is None:
            self._writer.count_dropped("ring_full", batch)
            return
        if self._settings.token_ids or shadow is not None:
            both = torch.cat([drafts[:batch], (drafts if shadow is None else shadow)[:batch]], -1)
            capture.ids = self._ids_ring.send(both.to(torch.int32).view(torch.float32))
        if self._clock.on:
            self._clock.mark()

    def _send(self, values: torch.Tensor, capture: Capture) -> None:
        """Send [B, width] to the writer, once the masses have been filled in."""
        masses, batch = self._masses, len(values)
        if masses is None:
            capture.values = self._ring.send(values)
            return
        job = Job()
        rows = capture.values = self._ring.hold(batch, values.shape[1], job)
        if rows is None:
            return
        by_head = capture.head_mass = self._heads.hold(batch, job) if self.per_head else None

        def fill() -> None:
            masses()
            rows.fill(values)
            if by_head is not None:
                self._heads.fill(by_head, batch)

        self._beside.post(job, lambda: self._beside_guard.succeeds("masses", fill))

    def _measure(self, *, at_once: bool = False) -> None:
        """Finalise the buffers after the chain is drafted. The masses are included if they are
        wanted `at_once` or cannot be measured on the side thread."""
        at, capture = self._at, self._capture
        if at is None or capture is None or self._guard.failed:
            return
        step, batch = capture.step, len(capture.step.requests)
        queries = len(at.rows) // batch
        position = at.position if queries == 1 else at.position.repeat_interleave(queries)
        self._kernels.finish(position)
        capture.execution = self.taps.execution(step.k // queries)
        if self._weights_ring is not None and self.search is not None:
            capture.sought = True
            capture.slot_weights = self._weights_ring.send(self.meter.slot_weights(step, at))
            return
        heads = self._heads.take(batch) if self.per_head else None
        plan = self.meter.plan(step, at, heads)
        if plan is None:
            self.meter.measure(step, at, heads)
        elif at_once or plan.little or queries > 1:
            plan.fill()
        else:
            self._masses = plan.fill
            return
        if heads is not None:
            capture.head_mass = self._heads.send(batch)

    def _on_step_ended(self, requests: int, step_s: float) -> None:
        self._number += 1
        guard = self._guard
        own_s, core_s, guard.failed = guard.taken_s, CORE.probe_s, False
        done = (
            self._number,
            time.time(),
            self._scheduled,
            self._lengths,
            self._k,
            self._capture,
            self._clock.take() if self._clock.on else NO_MARKS,
            self.sampler.drawn_at,
            requests,
            step_s,
            self._draft_s,
            own_s - self._told_s,
            core_s - self._core_s,
        )
        self._told_s, self._core_s = own_s, core_s
        self._writer.put((self._encode, done))


def _kernels(buffers: ChainBuffers, on_gpu: bool) -> Kernels:
    if not on_gpu:
        try:
            from driftscope_probes.taps.numba_kernels import CompiledKernels
        except ImportError:  # no Numba
            return TorchKernels(buffers)
        return CompiledKernels(buffers)
    from driftscope_probes.taps.triton_kernels import TritonKernels

    return TritonKernels(buffers)
