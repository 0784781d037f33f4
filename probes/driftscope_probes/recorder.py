"""Records one worker's draft steps: a runner seam calls it, it calls the taps and the writer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from driftscope.trace.writer import TraceWriter
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.capture import Encoder, Finished
from driftscope_probes.drafter import Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.meter import Meter
from driftscope_probes.ring import Landing, Ring
from driftscope_probes.settings import Settings
from driftscope_probes.taps import Taps
from driftscope_probes.view import DeviceStep, DraftStep


class Recorder:
    """A step's life: `step_started`, perhaps `draft_started` and `draft_ended`, `step_ended`."""

    def __init__(self, drafter: Drafter, settings: Settings, writer: TraceWriter) -> None:
        """Raises ProbeError for an attention backend that is not supported."""
        self._settings, self._writer = settings, writer
        self._guard = Guard(writer, test_raise=settings.test_raise)
        layout = Layout(depths=drafter.k, layers=len(drafter.attention), aux=drafter.aux_states)
        self._buffers = ChainBuffers(layout, drafter.max_requests, drafter.device)
        on_gpu = drafter.device.type == "cuda"
        self._kernels = _kernels(self._buffers, on_gpu)
        self._meter = Meter(
            drafter, self._buffers, tuple(range(settings.sink_tokens)),
            use_lse=settings.strategy != "keys", use_triton=on_gpu,
        )  # fmt: skip
        self.taps = Taps(
            drafter, self._buffers, self._kernels, self._guard,
            in_graph=on_gpu and settings.recording == "in-graph",
        )  # fmt: skip
        self._ring = Ring(drafter.max_requests, layout.width, drafter.device)
        self._drafts_ring = Ring(drafter.max_requests, drafter.k, drafter.device)
        self._encoder = Encoder(
            layout, heads=self._meter.heads, strategy=self._meter.strategy,
            max_slots=drafter.max_slots,
        )  # fmt: skip
        self._number = self._drafts_seen = 0
        self._begin()

    def step_started(self) -> None:
        """The target model is about to run."""
        self._begin()
        self._started = time.perf_counter()

    def draft_started(self, make_step: Callable[[], DraftStep]) -> None:
        """The drafter is about to run."""
        self._guard.run("draft_started", lambda: self._on_draft_started(make_step()))
        self._draft_from = time.perf_counter()

    def draft_ended(self, drafts: Any) -> None:
        """The drafter has run; `drafts` [B, K] int are its tokens."""
        self._draft_s = time.perf_counter() - self._draft_from
        if self.taps.active:
            self._guard.run("draft_ended", lambda: self._on_draft_ended(drafts))
        self.taps.active = False

    def step_ended(self, requests: int) -> None:
        """The step is done."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", lambda: self._on_step_ended(requests, step_s))
        self._begin()

    def close(self) -> None:
        """Seal the trace."""
        self.taps.detach()
        self._writer.close()

    def _begin(self) -> None:
        self._step: DraftStep | None = None
        self._at: DeviceStep | None = None
        self._values: Landing | None = None
        self._drafts: Landing | None = None
        self._draft_s = 0.0
        self.taps.active = False

    def _on_draft_started(self, step: DraftStep) -> None:
        self._step = step
        self.taps.serving()
        self._drafts_seen += 1
        if step.k == 0 or (self._drafts_seen - 1) % self._settings.every:
            self._kernels.skip()
            return
        self._at = at = step.on_device()
        batch = len(step.requests)
        self._buffers.values[:batch].fill_(torch.nan)
        self._buffers.rows[:batch] = at.rows
        self._kernels.begin(batch)
        self.taps.active = True

    def _on_draft_ended(self, drafts: Any) -> None:
        step, at = self._step, self._at
        if at is None or step is None or self._guard.failed:
            return
        batch = len(step.requests)
        self._kernels.finish()
        self._meter.measure(step, at, None)
        self._buffers.put_int("position", at.position)
        self._values = self._ring.send(self._buffers.values[:batch])
        if self._values is None:
            self._writer.count_dropped("ring_full", batch)
        elif self._settings.token_ids:
            ids = drafts[:batch].to(torch.int32).contiguous()
            self._drafts = self._drafts_ring.send(ids.view(torch.float32))

    def _on_step_ended(self, requests: int, step_s: float) -> None:
        self._number += 1
        done = Finished(
            number=self._number,
            time_s=time.time(),
            step=self._step,
            values=self._values,
            drafts=self._drafts,
            head_mass=None,
            rate=1.0,
            execution="eager",
            requests=requests,
            step_s=step_s,
            draft_s=self._draft_s,
            probe_s=self._guard.reset(),
        )
        self._writer.put(lambda: self._encoder.rows(done))


def _kernels(buffers: ChainBuffers, on_gpu: bool) -> Kernels:
    if not on_gpu:
        return TorchKernels(buffers)
    from driftscope_probes.kernels_triton import TritonKernels

    return TritonKernels(buffers)
