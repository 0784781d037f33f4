"""The life of a draft step: a runner module reports it here, and it ends in the writer's queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.trace.write.batch_encoder import Encode
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.device_clock import NO_MARKS, DeviceClock
from driftscope_probes.base.guard import CORE, Guard
from driftscope_probes.base.step_view import DraftCall
from driftscope_probes.masses.meter import Meter
from driftscope_probes.masses.sink_search import SinkSearch
from driftscope_probes.recording.chain_measurement import ChainMeasurement
from driftscope_probes.recording.host_transfer import HostTransfer
from driftscope_probes.recording.recorded_draft import RecordedDraft
from driftscope_probes.steps.request_selection import RequestSelection
from driftscope_probes.steps.sampler import Sampler
from driftscope_probes.steps.step_schedule import NO_LENGTHS, ScheduleReader
from driftscope_probes.taps.chain_taps import ChainTaps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecorderParts:
    """The parts of one worker's recorder; `recorder_assembly` builds them."""

    writer: TraceWriter
    schedules: ScheduleReader
    """Reads what the engine schedules."""
    guard: Guard
    clock: DeviceClock
    taps: ChainTaps
    sampler: Sampler
    selection: RequestSelection
    chain: ChainMeasurement
    transfer: HostTransfer
    recorded_draft: RecordedDraft
    encode: Encode
    """Builds the rows of finished steps, on the writer's thread."""


class Recorder:
    """Records steps: call `step_started`, perhaps `draft`, `step_ended` for each, in order."""

    def __init__(self, parts: RecorderParts) -> None:
        self._writer, self._encode, self._clock = parts.writer, parts.encode, parts.clock
        self._schedules, self._new_requests = parts.schedules, parts.schedules.new_requests
        self._guard = parts.guard
        self._attributed_s, self._core_attributed_s = 0.0, CORE.probe_s
        """Hook time attributed to finished steps, in seconds: the worker's, the engine core's."""
        self.taps, self.sampler, self.selection = parts.taps, parts.sampler, parts.selection
        self._hooks, self._switch = parts.taps.hooks, parts.taps.switch
        self._chain, self._side_thread = parts.chain, parts.chain.side_thread
        self._transfer, self._run_recorded = parts.transfer, parts.recorded_draft.run
        self.control: object | None = None
        """Object that changes this recorder at run time, kept for callers over RPC."""
        self._number = 0
        self._started, self._draft_s = time.perf_counter(), 0.0
        self._scheduled: Any = None
        self._lengths: Mapping[str, int] = NO_LENGTHS
        self._k: int | None = None
        """Depths of the draft in progress; None before the drafter runs."""
        self._awake = True
        """Whether the taps are installed, or the gate of their kernels may be open."""

    @property
    def meter(self) -> Meter:
        """Meter of the attention masses."""
        return self._chain.meter

    @property
    def search(self) -> SinkSearch | None:
        """Search for the sink set; None if the set is given or has been found."""
        return self._chain.search

    @property
    def device_bytes(self) -> int:
        """Most memory that the probe's buffers take on the drafter's device, in bytes."""
        return self._chain.device_bytes

    @property
    def guard(self) -> Guard:
        """Border between the recorder's hooks and the engine."""
        return self._guard

    @property
    def recording_step(self) -> bool:
        """Whether the step in progress, or the last one, is recorded."""
        return self._chain.capture is not None

    @property
    def per_head(self) -> bool:
        """Whether masses are also recorded by head; may be set at run time."""
        return self._chain.per_head

    @per_head.setter
    def per_head(self, per_head: bool) -> None:
        self._chain.per_head = per_head

    def step_started(self, scheduled: Any = None) -> None:
        """Start a step: the target model is about to run what the engine has `scheduled`."""
        self._started = time.perf_counter()
        self._scheduled, self._lengths = scheduled, NO_LENGTHS
        self._k, self._draft_s = None, 0.0
        if self._chain.capture is not None:
            self._chain.forget()
            self._switch.active = False
        if self._clock.on:
            self._clock.start()
        if self._side_thread.busy:
            self._guard.run("join", self._chain.wait_for_keys, scheduled, self._schedules)
        if scheduled is not None and getattr(scheduled, self._new_requests, True):
            self._guard.run("step_started", self._on_step_started, scheduled)

    def draft(self, call: DraftCall) -> Any:
        """Run the drafter, recorded if the step is sampled; return [B, K] int tokens."""
        if self._side_thread.busy:  # drafter and taps are about to write
            self._guard.run("join", self._side_thread.join)
        self._guard.run("draft_started", self._on_draft_started, call)
        if self._switch.active:
            drafts, shadow, self._draft_s = self._run_recorded(call)
            if self._switch.active or shadow is not None:
                self._switch.flush_notes()
                self._guard.run("draft_ended", self._on_draft_ended, drafts, shadow)
            self._switch.active = False
            return drafts
        if self._clock.on:
            self._clock.mark()
        begun = time.perf_counter()
        drafts = call.serve()
        self._draft_s = time.perf_counter() - begun
        if self._clock.on:
            self._clock.mark()
        return drafts

    def add_draft_time(self, seconds: float) -> None:
        """Count time that the drafter ran outside of `draft` in the step in progress."""
        self._draft_s += seconds

    def step_ended(self, requests: int) -> None:
        """Finish the step and pass it to the writer."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", self._on_step_ended, requests, step_s)

    def close(self) -> None:
        """Remove the taps and seal the trace."""
        self.taps.detach()
        self._guard.run("join", self._side_thread.join)
        self._writer.close()

    def _on_step_started(self, scheduled: Any) -> None:
        self.selection.learn(self._schedules.labels(scheduled))
        self._lengths = self._schedules.prompt_lengths(scheduled)

    def _on_draft_started(self, call: DraftCall) -> None:
        self._k = k = int(call.k)
        chain = self._chain
        if chain.search is not None:
            chain.take_sinks(chain.search)
        if k > 0 and self.sampler.take():  # counted by every rank, for all requests
            step = call.step()
            chosen = self.selection.chosen(step.requests)
            if chosen is None or chosen.any():
                self._awake = True
                self._switch.serving()
                self._hooks.install()
                chain.begin(step, chosen, call.on_device(), self._number)
                self._switch.active = True
                return
        if self._awake:
            self._awake = False
            self._switch.serving()
            chain.kernels.skip()
            self._hooks.uninstall()

    def _on_draft_ended(self, drafts: Any, shadow: Any) -> None:
        chain = self._chain
        if shadow is None:
            chain.measure()
        if self._guard.failed:
            return
        self._transfer.send(drafts, shadow)
        if self._clock.on and chain.capture is not None and chain.capture.values is not None:
            self._clock.mark()

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
            self._chain.capture,
            self._clock.take() if self._clock.on else NO_MARKS,
            self.sampler.drawn_at,
            requests,
            step_s,
            self._draft_s,
            own_s - self._attributed_s,
            core_s - self._core_attributed_s,
        )
        self._attributed_s, self._core_attributed_s = own_s, core_s
        self._writer.put((self._encode, done))
