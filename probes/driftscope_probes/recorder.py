"""Records one worker's draft steps: a runner seam calls it, it calls the taps and the writer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from driftscope.trace.writer import TraceWriter
from driftscope_probes.capture import Capture, Encoder, Finished, HostColumns, HostCopy
from driftscope_probes.drafter import Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.settings import Settings
from driftscope_probes.taps import Taps
from driftscope_probes.view import DraftStep


class Recorder:
    """A step's life: `step_started`, perhaps `draft_started` and `draft_ended`, `step_ended`."""

    def __init__(self, drafter: Drafter, settings: Settings, writer: TraceWriter) -> None:
        self._settings, self._writer = settings, writer
        self._guard = Guard(writer, test_raise=settings.test_raise)
        self._taps = Taps(drafter, self._guard, settings.sink_tokens)
        self._encoder = Encoder(len(drafter.attention))
        self._number = self._drafts_seen = 0
        self._begin()
        self._taps.attach()

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
        if self._step is not None:
            self._guard.run("draft_ended", lambda: self._on_draft_ended(drafts))
        self._taps.stop()

    def step_ended(self, requests: int) -> None:
        """The step is done."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", lambda: self._on_step_ended(requests, step_s))
        self._begin()

    def close(self) -> None:
        """Seal the trace."""
        self._taps.detach()
        self._writer.close()

    def _begin(self) -> None:
        self._step: DraftStep | None = None
        self._columns: HostColumns | None = None
        self._drafts: HostCopy | None = None
        self._position: HostCopy | None = None
        self._draft_s = 0.0
        self._taps.stop()

    def _on_draft_started(self, step: DraftStep) -> None:
        self._step = step
        if self._drafts_seen % self._settings.every == 0:
            self._taps.start(Capture(step))
        self._drafts_seen += 1

    def _on_draft_ended(self, drafts: Any) -> None:
        capture, step = self._taps.capture, self._step
        if capture is None or step is None or self._guard.failed:
            return
        self._columns = capture.to_host()
        self._position = HostCopy(step.position)
        if self._settings.token_ids:
            self._drafts = HostCopy(drafts[: len(step.requests)].clone())

    def _on_step_ended(self, requests: int, step_s: float) -> None:
        self._number += 1
        step = self._step
        prefilling = None if step is None else step.prefilling
        done = Finished(
            number=self._number,
            time_s=time.time(),
            step=step,
            prefilling=prefilling
            if prefilling is None or isinstance(prefilling, np.ndarray)
            else HostCopy(prefilling),
            position=self._position,
            columns=self._columns,
            drafts=self._drafts,
            requests=requests,
            step_s=step_s,
            draft_s=self._draft_s,
            probe_s=self._guard.reset(),
        )
        self._writer.put(lambda: self._encoder.rows(done))
