"""Reports to the sampler what finished steps cost, and to the status what the sampler decided."""

from __future__ import annotations

from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.steps.sampler import Sampler
from driftscope_probes.steps.step_record import StepRecord


class CostFeedback:
    """The path from the steps that a writer's thread encodes back to the sampler."""

    def __init__(self, sampler: Sampler, writer: TraceWriter) -> None:
        self._sampler, self._writer = sampler, writer
        self._step_s = 0.0
        """Time of all model steps so far, in seconds."""
        self._before = (0.0, 0.0, 0)
        """Values at the last flush: the writer thread's time until then, the part of it spent on
        recorded chains, and the number of steps."""

    def report_steps(self, steps: list[StepRecord]) -> None:
        """Report the costs of each step that drafted to the sampler, which decides by them."""
        self._step_s += sum(done.step_s for done in steps)
        passed = [done for done in steps if done.k is not None and not done.recorded]
        recorded = [done for done in steps if done.recorded]
        for group in (passed, recorded):
            if group:
                self._sampler.note(
                    [done.step_s - done.probe_s for done in group],
                    [done.probe_s + done.core_s for done in group],
                    recorded=group is recorded,
                )

    def report_writing(
        self, *, steps: int, recorded: int, encoding_s: float, side_s: float
    ) -> None:
        """Report the time that this flush took for recorded chains, on this thread and on the side
        thread, and all the time of the previous flush, which is completely known by now."""
        sampler = self._sampler
        if recorded:
            sampler.note_encoding((encoding_s + side_s) / recorded)
        spent_s = self._writer.spent_s
        before_s, encoding_before_s, steps_before = self._before
        if steps_before:
            writing_s = max(0.0, spent_s - before_s - encoding_before_s)
            sampler.note_writing(writing_s / steps_before)
        self._before = (spent_s, encoding_s, steps)
        self._writer.set_gauges(
            rate=sampler.rate if sampler.recording else 0.0,
            overhead=sampler.overhead,
            recording=sampler.recording,
            step_s=round(self._step_s, 6),
        )
