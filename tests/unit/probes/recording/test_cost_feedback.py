"""Costs that the governor learns on a GPU, in simulated engines of known cost.

The host may issue one step ahead of the device, as vLLM's asynchronous scheduling does. The truth
is how much longer the same steps take with the probe than without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driftscope.trace.writer import TraceWriter
from driftscope_probes.buffers import Marks
from driftscope_probes.encoder import CostFeedback
from driftscope_probes.engine import NO_LENGTHS
from driftscope_probes.sampler import AIM, LEAST_RATE, SEEN, Sampler
from driftscope_probes.step_record import Capture, StepRecord

BUDGET = 0.01
STEPS, FLUSH = 6000, 40


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Times of one step, in seconds, and what the probe adds to a recorded one."""

    host_s: float
    device_s: float
    draft_s: float = 0.0012
    """Part of the device's time, its last."""
    probe_host_s: float = 0.0012
    probe_draft_s: float = 0.00007
    """Added while the device drafts."""
    probe_after_s: float = 0.00002
    """Added on the device after that."""

    def serve(self, sampler: Sampler | None, feedback: CostFeedback | None) -> tuple[float, int]:
        """Return the time that all steps take, and how many were recorded."""
        host = device = before = 0.0
        taken, flush = 0, []
        for number in range(1, STEPS + 1):
            recorded = sampler is not None and sampler.take()
            taken += recorded
            begun = max(host, before)  # not more than one step ahead
            host = begun + self.host_s + recorded * self.probe_host_s
            before, issued = device, host
            drafting = max(device, issued) + self.device_s - self.draft_s
            drafted = drafting + self.draft_s + recorded * self.probe_draft_s
            device = drafted + recorded * self.probe_after_s
            marks = [drafting, drafted, *([device] if recorded else [])]
            flush.append(self._step(number, begun, host, marks))
            if feedback is not None and len(flush) == FLUSH:
                feedback.report_steps(flush)
                flush = []
        return device, taken

    def _step(self, number: int, begun: float, ended: float, marks: list[float]) -> StepRecord:
        recorded = len(marks) == 3
        return StepRecord(
            number=number,
            time_s=ended,
            scheduled=None,
            lengths=NO_LENGTHS,
            k=4,
            capture=_captured() if recorded else None,
            marks=Marks([Event(at_s) for at_s in marks]),
            rate=1.0,
            requests=1,
            step_s=ended - begun,
            draft_s=0.0,
            probe_s=recorded * self.probe_host_s,
            core_s=0.0,
        )


@dataclass
class Event:
    at_s: float

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return (other.at_s - self.at_s) * 1000


def _captured() -> Capture:
    values: Any = object()
    step: Any = None
    prompt: Any = None
    return Capture(step, prompt, None, values=values)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TraceWriter]:
    writer = TraceWriter(tmp_path / "run", source="worker0-1")
    yield writer
    writer.close()


def _governed(engine: Engine, writer: TraceWriter) -> tuple[float, float, Sampler]:
    """Return the true share that the probe adds, the share of steps recorded, and the sampler."""
    sampler = Sampler(every=None, budget=BUDGET, seed=3, seen=SEEN, aim=AIM)
    with_probe, taken = engine.serve(sampler, CostFeedback(sampler, writer))
    without, _ = engine.serve(None, None)
    return with_probe / without - 1, taken / STEPS, sampler


@pytest.mark.parametrize("device_s", [0.0055, 0.0067, 0.014])
def test_time_for_which_the_host_waits_anyhow_costs_nothing(
    device_s: float, writer: TraceWriter
) -> None:
    added, recorded, sampler = _governed(Engine(host_s=0.004, device_s=device_s), writer)
    # The shortest device leaves the host little to wait for, so that its time counts in part.
    assert 0.3 * BUDGET < added < BUDGET
    assert recorded > 0.2
    assert 0.9 * added <= sampler.overhead < BUDGET


@pytest.mark.parametrize("device_s", [0.003, 0.0067, 0.0069])
def test_a_host_that_is_not_ahead_pays_for_its_time(device_s: float, writer: TraceWriter) -> None:
    """From a device that waits for the host to one that a recorded step leaves waiting."""
    added, recorded, sampler = _governed(Engine(host_s=0.0068, device_s=device_s), writer)
    assert added < BUDGET
    assert LEAST_RATE < recorded < 0.15
    assert sampler.overhead > 0.8 * added


def test_every_step_recorded_leaves_none_to_compare_with(writer: TraceWriter) -> None:
    engine = Engine(host_s=0.004, device_s=0.0067)
    sampler = Sampler(every=1)
    engine.serve(sampler, CostFeedback(sampler, writer))
    assert sampler.overhead == pytest.approx(engine.probe_after_s / engine.device_s, rel=0.1)


def test_steps_whose_neighbour_is_missing_have_no_period(writer: TraceWriter) -> None:
    sampler = Sampler(every=1)
    feedback = CostFeedback(sampler, writer)
    engine = Engine(host_s=0.004, device_s=0.0067)
    first = engine._step(1, 0.0, 0.004, [0.005, 0.006, 0.0061])
    third = engine._step(3, 9.0, 9.004, [9.005, 9.006, 9.0061])
    feedback.report_steps([first, third])
    assert sampler.costs.step_s == pytest.approx(0.004 - engine.probe_host_s)
    assert sampler.costs.recorded_s == pytest.approx(engine.probe_host_s)
