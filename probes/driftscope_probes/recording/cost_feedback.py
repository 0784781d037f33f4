"""Reports to the sampler what finished steps cost, and to the status what the sampler decided."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.steps.sampler import DeviceTimes, Sampler
from driftscope_probes.steps.step_record import StepRecord


class CostFeedback:
    """The path from the steps that a writer's thread encodes back to the sampler."""

    def __init__(self, sampler: Sampler, writer: TraceWriter) -> None:
        self._sampler, self._writer = sampler, writer
        self._step_s = 0.0
        """Time of all model steps so far, in seconds."""
        self._before: _Flush | None = None
        """State at the last flush that had steps."""
        self._last: StepRecord | None = None
        """Last step that was reported."""

    def report_steps(self, steps: list[StepRecord]) -> None:
        """Report the costs of each step that drafted to the sampler, which decides by them."""
        self._step_s += sum(done.step_s for done in steps)
        periods = self._periods(steps)
        passed = [done for done in steps if done.k is not None and not done.recorded]
        recorded = [done for done in steps if done.recorded]
        for group in (passed, recorded):
            if group:
                self._report_device(group, periods, recorded=group is recorded)
                self._sampler.note(
                    [_serving_s(done, periods) for done in group],
                    [done.probe_s + done.core_s for done in group],
                    recorded=group is recorded,
                )

    def _periods(self, steps: list[StepRecord]) -> dict[int, float]:
        """Return the seconds from the end of the step before to the end of each step, by number,
        where that step is known."""
        before, periods = self._last, {}
        for done in steps:
            if before is not None and before.number == done.number - 1:
                periods[done.number] = done.time_s - before.time_s
            before = done
        self._last = before
        return periods

    def _report_device(
        self, group: list[StepRecord], periods: dict[int, float], *, recorded: bool
    ) -> None:
        """Report the device's times of steps that were all recorded, or none."""
        timed = [done for done in group if len(done.marks) and done.number in periods]
        if not timed:
            return
        drafting = [done.marks.between(0, len(done.marks) - 1) for done in timed]
        own = [done.marks.between(1, 2) for done in timed] if recorded else []
        self._sampler.note_device(
            DeviceTimes(
                slack_s=[periods[done.number] - done.step_s for done in timed],
                drafting_s=[each for each in drafting if each is not None],
                own_s=[each for each in own if each is not None],
            ),
            recorded=recorded,
        )

    def report_writing(
        self, *, steps: Sequence[StepRecord], recorded: int, encoding_s: float, side_s: float
    ) -> None:
        """Report the time that this flush took for recorded chains, on this thread and on the side
        thread, and this thread's other time since the last flush."""
        sampler = self._sampler
        if recorded:
            sampler.note_encoding((encoding_s + side_s) / recorded)
        if steps:
            now = _Flush(time.monotonic(), self._writer.spent_s, encoding_s)
            if self._before is not None:
                sampler.note_writing(_writing_s(self._before, now, steps))
            self._before = now
        self._writer.set_gauges(
            rate=sampler.rate if sampler.recording else 0.0,
            overhead=sampler.overhead,
            recording=sampler.recording,
            step_s=round(self._step_s, 6),
        )


def _serving_s(done: StepRecord, periods: Mapping[int, float]) -> float:
    """Return the time of a step without the probe; with a device, where the probe's time on the
    host may be hidden, its period."""
    if len(done.marks) and done.number in periods:
        return periods[done.number]
    return done.step_s - done.probe_s


class _Flush(NamedTuple):
    """Clocks at a flush, in seconds."""

    at_s: float
    spent_s: float
    """CPU time of the writer's thread until then."""
    encoding_s: float
    """Part of the thread's time in this flush that was spent on recorded chains."""


def _writing_s(before: _Flush, now: _Flush, steps: Sequence[StepRecord]) -> float:
    """Return the time per step that the writer's thread took beside recorded chains.

    It works on a clock, and also while the engine waits for requests. Only the share of its time in
    which the engine served is a cost of steps.
    """
    spent_s = max(0.0, now.spent_s - before.spent_s - before.encoding_s)
    served_s = steps[-1].time_s - steps[0].time_s + steps[0].step_s
    passed_s = now.at_s - before.at_s
    share = min(1.0, served_s / passed_s) if passed_s > 0 else 1.0
    return spent_s * share / len(steps)
