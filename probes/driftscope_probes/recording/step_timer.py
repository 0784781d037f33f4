"""Times the draft steps of a drafter that the probe cannot inspect, and writes no chains."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from driftscope.trace.format.row_block import Block
from driftscope.trace.write.writer import TraceWriter
from driftscope.vocabulary import Execution
from driftscope_probes.base.device_clock import NO_MARKS
from driftscope_probes.base.guard import Guard
from driftscope_probes.base.settings import Settings
from driftscope_probes.base.step_view import DraftCall
from driftscope_probes.steps.step_record import prefilling_of, step_record_from_tuple, step_rows
from driftscope_probes.steps.step_schedule import NO_LENGTHS, ScheduleReader


class StepTimer:
    """Replaces a Recorder, with the same calls in the same order."""

    def __init__(self, settings: Settings, writer: TraceWriter, schedules: ScheduleReader) -> None:
        self._writer = writer
        self._guard = Guard(writer, test_raise=settings.test_raise, adds_to=(writer,))
        self._attributed_s = 0.0
        self._step_s = 0.0
        """Time of all model steps whose rows have been built, in seconds."""
        self._number, self._started, self._draft_s = 0, 0.0, 0.0
        self._scheduled: Any = None
        self._lengths: Mapping[str, int] = NO_LENGTHS
        self._k: int | None = None
        self._schedules, self._new_requests = schedules, schedules.new_requests

    def step_started(self, scheduled: Any = None) -> None:
        """See Recorder."""
        self._begin()
        self._scheduled = scheduled
        if scheduled is not None and getattr(scheduled, self._new_requests, True):
            self._guard.run("step_started", self._on_step_started, scheduled)

    def draft(self, call: DraftCall) -> Any:
        """Run the drafter and time it."""
        self._k = self._guard.run("draft_started", int, call.k)
        begun = time.perf_counter()
        drafts = call.serve()
        self._draft_s = time.perf_counter() - begun
        return drafts

    def add_draft_time(self, seconds: float) -> None:
        """See Recorder."""
        self._draft_s += seconds

    def step_ended(self, requests: int) -> None:
        """Finish the step and pass it to the writer."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", self._on_step_ended, requests, step_s)
        self._begin()

    def close(self) -> None:
        """Seal the trace."""
        self._writer.close()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._scheduled, self._lengths = None, NO_LENGTHS
        self._k, self._draft_s = None, 0.0

    def _on_step_started(self, scheduled: Any) -> None:
        self._lengths = self._schedules.prompt_lengths(scheduled)

    def _on_step_ended(self, requests: int, step_s: float) -> None:
        self._number += 1
        taken_s = self._guard.taken_s
        done = (
            self._number,
            time.time(),
            self._scheduled,
            self._lengths,
            self._k,
            None,
            NO_MARKS,
            1.0,
            requests,
            step_s,
            self._draft_s,
            taken_s - self._attributed_s,
            0.0,
        )
        self._attributed_s = taken_s
        self._writer.put((self._rows, done))

    def _rows(self, handed_over: list[tuple[Any, ...]]) -> list[Block]:
        steps = list(map(step_record_from_tuple, handed_over))
        self._step_s += sum(done.step_s for done in steps)
        self._writer.set_gauges(step_s=round(self._step_s, 6))
        prefilling = prefilling_of(steps, self._schedules.prompts, self._writer)
        return [step_rows(steps, prefilling, passed=Execution.UNSAID)]
