"""Times the draft steps of a drafter into which the probe cannot look, and writes no chains."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from driftscope.trace.block import Block
from driftscope.trace.records import Execution
from driftscope.trace.writer import TraceWriter, Work
from driftscope_probes.capture import Finished, prefilling_of, step_rows
from driftscope_probes.clock import NO_MARKS
from driftscope_probes.guard import Guard
from driftscope_probes.settings import Settings
from driftscope_probes.view import Drafting, DraftStep


class StepTimer:
    """Stands where a Recorder would: the same calls, in the same order."""

    def __init__(self, settings: Settings, writer: TraceWriter) -> None:
        self._writer = writer
        self._guard = Guard(writer, test_raise=settings.test_raise)
        self._number, self._started, self._draft_s = 0, 0.0, 0.0
        self._step: DraftStep | None = None

    def step_started(self, scheduled: Any = None) -> None:  # noqa: ARG002
        """The target model is about to run."""
        self._begin()

    def draft(
        self, make_step: Callable[[], Drafting], serve: Callable[[], Any],
        without_graphs: Callable[[], Any] | None = None,  # noqa: ARG002
    ) -> Any:  # fmt: skip
        """Have the drafter run."""
        made = self._guard.run("draft_started", make_step)
        self._step = None if made is None else made[0]
        begun = time.perf_counter()
        drafts = serve()
        self._draft_s = time.perf_counter() - begun
        return drafts

    def step_ended(self, requests: int) -> None:
        """The step is done."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", self._on_step_ended, requests, step_s)
        self._guard.reset()
        self._begin()

    def close(self) -> None:
        """Seal the trace."""
        self._writer.close()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._step, self._draft_s = None, 0.0

    def _on_step_ended(self, requests: int, step_s: float) -> None:
        self._number += 1
        done = Finished(
            self._number, time.time(), self._step, None, NO_MARKS, 1.0, requests, step_s,
            self._draft_s, self._guard.taken_s,
        )  # fmt: skip
        self._writer.put(Work(_rows, done))


def _rows(steps: list[Finished]) -> list[Block]:
    masks = [prefilling_of(done) for done in steps]
    return [step_rows(steps, masks, passed=Execution.UNSAID)]
