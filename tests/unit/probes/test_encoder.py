"""From a step's numbers to its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.schedules import schedule

from driftscope.trace.records import DraftRow, StepRow
from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope.vocabulary import MASSES
from driftscope_probes import encoder as encoder_module
from driftscope_probes.buffers import NO_MARKS, ChainBuffers, DeviceMarks, HostRing, Landing, Layout
from driftscope_probes.encoder import END, ChainEncoder, CostFeedback, EncoderOptions
from driftscope_probes.engine import DraftStep
from driftscope_probes.sampler import AIM, LEAST_RATE, SEEN, Sampler
from driftscope_probes.step_record import Capture, StepRecord
from driftscope_probes.vllm.schedule import CacheFaultTracker, VllmSchedules, prompt_lengths

K, LAYERS, HEADS, MAX_SLOTS = 3, 2, 4, 100
LAYOUT = Layout(depths=4, layers=LAYERS, aux=2)
CPU = torch.device("cpu")


def _landing(values: torch.Tensor) -> Landing:
    landing = HostRing(*values.shape, CPU, slots=1).send(values)
    assert landing is not None
    return landing


def _step(*prefilling: bool, k: int = K) -> DraftStep:
    return DraftStep(tuple(f"r{b}" for b in range(len(prefilling))), bytes(prefilling), k)


BOTH = _step(False, False)


def _values(step: DraftStep, position: int = 20) -> torch.Tensor:
    """Request b's depth d: in_rms 100 b + d, sink_mass b + d + layer / 10; no other masses."""
    batch = len(step.requests)
    buffers = ChainBuffers(LAYOUT, batch, CPU)
    of = torch.arange(batch)[:, None]
    depth = torch.arange(1, LAYOUT.depths + 1)
    buffers.part("in_rms", batch)[:] = of * 100.0 + depth
    masses = buffers.part("masses", batch).view(batch, LAYOUT.depths, LAYERS, len(MASSES))
    masses[..., 0] = of[..., None] + depth[:, None] + torch.arange(LAYERS) / 10
    buffers.part("aux_rms", batch)[:] = torch.tensor([0.0, 1.0])
    buffers.part("fc_rms", batch)[:] = of + 0.5
    buffers.put_int("position", position + torch.arange(batch))
    return buffers.values


def _passed(step: DraftStep | None, **changes: Any) -> StepRecord:
    """Return a step that was not recorded; None: without a draft."""
    scheduled = changes.pop("scheduled", None if step is None else _scheduled(step))
    plain = {
        "number": 4,
        "time_s": 1.5,
        "scheduled": scheduled,
        "lengths": prompt_lengths(getattr(scheduled, "scheduled_new_reqs", [])),
        "k": None if step is None else step.k,
        "capture": None,
        "marks": NO_MARKS,
        "rate": 0.25,
        "requests": len(step.requests) if step else 0,
        "step_s": 0.5,
        "draft_s": 0.25,
        "probe_s": 0.125,
        "core_s": 0.0,
    }
    return StepRecord(**{**plain, **changes})  # type: ignore[arg-type]


def _finished(
    step: DraftStep,
    *,
    ids: torch.Tensor | None = None,
    distance_mass: Landing | None = None,
    chosen: Any = None,
    position: int = 20,
    **changes: Any,
) -> StepRecord:
    capture = Capture(
        step=step,
        prompt_tokens=np.arange(10, 10 + len(step.requests)),
        chosen=chosen,
        values=_landing(_values(step, position)),
        ids=None if ids is None else _landing(ids.to(torch.int32).view(torch.float32)),
        distance_mass=distance_mass,
        execution="eager",
    )
    return _passed(step, **{"scheduled": None, "capture": capture, **changes})


def _scheduled(step: DraftStep) -> Any:
    """Return a schedule of prompts of ten tokens; a prompt that continues has one token left."""
    tokens = [10 - goes_on for goes_on in step.prefilling]
    ten = dict.fromkeys(step.requests, (10,))
    return schedule(dict(zip(step.requests, tokens, strict=True)), new=ten)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TraceWriter]:
    made = TraceWriter(tmp_path / "run", source="worker0-1")
    yield made
    made.close()


@pytest.fixture
def encoder(writer: TraceWriter) -> ChainEncoder:
    return _encoder(writer, keep_ids=True)


def _encoder(
    writer: TraceWriter,
    sampler: Sampler | None = None,
    faults: CacheFaultTracker | None = None,
    **options: Any,
) -> ChainEncoder:
    chosen = EncoderOptions(heads=HEADS, strategy="keys", max_slots=MAX_SLOTS, **options)
    return ChainEncoder(LAYOUT, chosen, writer, sampler or Sampler(every=4), VllmSchedules(faults))


def _steps(encoder: ChainEncoder, *done: StepRecord) -> list[StepRow]:
    return [StepRow(**row) for row in _rows(encoder, "step", *done)]


def _chains(encoder: ChainEncoder, *done: StepRecord) -> list[DraftRow]:
    return [DraftRow(**row) for row in _rows(encoder, "draft", *done)]


def _rows(encoder: ChainEncoder, record: str, *done: StepRecord) -> list[dict[str, Any]]:
    blocks = encoder.rows(list(done))
    return [
        row for block in blocks if block.record == record for row in block.to_batch().to_pylist()
    ]


def test_chains_wait_for_the_step_that_verifies_them(encoder: ChainEncoder) -> None:
    """But not at the end of a run."""
    first = _finished(BOTH)
    assert first.capture is not None
    first.capture.awaited = True
    assert not _chains(encoder, first)
    near = torch.tensor([[3.0, 0.25, 1.0], [torch.nan] * 3])
    first.capture.near_misses = _landing(near)
    rejected, accepted = _chains(encoder, _passed(None))
    assert (rejected.target_token_rank, rejected.rejected_closeness) == (3, 0.25)
    assert rejected.rejected_excluded is True
    assert accepted.target_token_rank is accepted.rejected_excluded is None
    last = _finished(BOTH)
    assert last.capture is not None
    last.capture.awaited = True
    blocks = encoder.handed_over([tuple(last), END])
    assert [block.rows for block in blocks if block.record == "draft"] == [2]


def test_hooks_that_take_longer_than_their_step_leave_a_readable_status(
    writer: TraceWriter,
) -> None:
    encoder = _encoder(writer, sampler := Sampler(every=4))
    _rows(encoder, "step", *[_finished(_step(False), step_s=0.01, probe_s=0.5) for _ in range(8)])
    assert sampler.overhead >= 0.0


def test_a_step_comes_before_its_chains_with_their_own_numbers(encoder: ChainEncoder) -> None:
    steps, chains = encoder.rows([_finished(BOTH)])
    (step,) = steps.to_batch().to_pylist()
    assert StepRow(**step) == StepRow(
        step=4,
        time_s=1.5,
        requests=2,
        chains=2,
        k=K,
        recorded=True,
        step_s=0.5,
        draft_s=0.25,
        probe_s=0.125,
        rate=0.25,
        execution="eager",
    )
    first, second = [DraftRow(**row) for row in chains.to_batch().to_pylist()]
    assert (first.request, second.request) == ("r0", "r1")
    assert (second.position, second.prompt_tokens) == (21, 11)
    assert (second.step, second.batch, second.k, second.layers) == (4, 2, K, LAYERS)
    assert (second.rate, second.heads, second.strategy) == (0.25, HEADS, "keys")
    assert second.execution == "eager"
    assert second.in_rms == [101.0, 102.0, 103.0], "of the chain's own length"
    assert second.sink_mass == pytest.approx([2.0, 2.1, 3.0, 3.1, 4.0, 4.1]), "depth-major"
    assert (second.aux_rms, first.fc_rms, second.fc_rms) == ([0.0, 1.0], 0.5, 1.5)
    absent = {name for name, value in asdict(first).items() if value is None}
    optional = {"token_ids", "distance_mass"}
    assert absent >= {"null_mass", "aux_norm_rms", "prompt_mass", "entropy", *optional}


def test_depths_past_the_context_limit_are_void(encoder: ChainEncoder) -> None:
    # The query of depth d is slot p + d - 1; the last slot is MAX_SLOTS - 1.
    (chain,) = _chains(encoder, _finished(_step(False), position=MAX_SLOTS - 2))
    assert chain.in_rms == pytest.approx([1.0, 2.0, np.nan], nan_ok=True)
    # The last slot's key is written over by the depths that are past it.
    assert chain.sink_mass == pytest.approx([1.0, 1.1, *[np.nan] * 4], nan_ok=True)
    assert chain.fc_rms == 0.5


def test_masses_by_distance_are_those_of_the_request_and_of_its_depths(
    encoder: ChainEncoder,
) -> None:
    name, width = "distance_mass", 8
    values = torch.arange(2.0)[:, None] + torch.arange(4 * LAYERS * width) / 1000
    given: dict[str, Any] = {"step": _step(True, False), name: _landing(values)}
    (chain,) = _chains(encoder, _finished(**given))
    np.testing.assert_array_equal(getattr(chain, name), values[1, : K * LAYERS * width])
    given[name] = _landing(values)
    (chain,) = _chains(encoder, _finished(**given, position=MAX_SLOTS - 3))
    lost = np.isnan(getattr(chain, name)).reshape(K, LAYERS * width)
    assert lost.all(1).tolist() == lost.any(1).tolist() == [False, True, True]


def test_token_ids_only_when_they_are_to_be_kept(
    writer: TraceWriter, encoder: ChainEncoder
) -> None:
    served = torch.tensor([[1, 2, 3], [4, 5, 70000]])
    ids = torch.cat((served, served), -1)
    (_, chain) = _chains(encoder, _finished(BOTH, ids=ids))
    assert chain.token_ids == [4, 5, 70000]
    (_, chain) = _chains(_encoder(writer), _finished(BOTH, ids=ids))
    assert chain.token_ids is None


@pytest.mark.parametrize("recorded", [True, False])
def test_prefilling_requests_are_dropped_and_marked_as_chunked_for_good(
    encoder: ChainEncoder, recorded: bool
) -> None:
    """Also of a step that is not recorded."""
    done = (_finished if recorded else _passed)(_step(True, False, True))
    (step,) = _steps(encoder, done)
    assert (step.recorded, step.requests, step.chains, step.k) == (recorded, 3, 1, K)
    for chain in _chains(encoder, done):
        assert (chain.request, chain.batch, chain.fc_rms) == ("r1", 3, 1.5)
        assert chain.chunked_prefill is False
    for _ in range(2):
        later = _chains(encoder, _finished(BOTH))
        assert [chain.chunked_prefill for chain in later] == [True, False]


def test_a_runner_that_differs_from_its_schedules_is_believed_and_told(
    encoder: ChainEncoder, writer: TraceWriter, tmp_path: Path
) -> None:
    alike = _finished(_step(True, False), scheduled=_scheduled(_step(True, False)))
    assert len(_chains(encoder, alike)) == 1
    differs = _finished(_step(True, False), scheduled=_scheduled(_step(False, True)))
    assert [chain.request for chain in _chains(encoder, differs)] == ["r1"]
    writer.close()
    (status,) = read_statuses(tmp_path / "run")
    assert status.errors == {"prefilling": 1}
    assert status.first_error == "prefilling: PrefillsDifferError: ['r0', 'r1']"


def test_a_schedule_that_cannot_be_read_costs_no_row(
    encoder: ChainEncoder, writer: TraceWriter, tmp_path: Path
) -> None:
    (step,) = _steps(encoder, _passed(_step(False), scheduled=object()))
    assert step.chains == 1
    writer.close()
    assert read_statuses(tmp_path / "run")[0].errors == {"prefilling": 1}


def test_faults_in_the_drafters_cache_are_remembered(writer: TraceWriter) -> None:
    encoder, step = _encoder(writer, faults=CacheFaultTracker()), BOTH
    ran_without_the_drafter = _passed(None, scheduled=_scheduled(step))
    again = _finished(step, scheduled=schedule(going_on=dict.fromkeys(step.requests, 10)))
    found = _chains(encoder, ran_without_the_drafter, again)
    assert [chain.chunked_prefill for chain in found] == [True, True]


@dataclass
class Event:
    at_s: float
    reached: bool = False

    def synchronize(self) -> None:
        self.reached = True

    def elapsed_time(self, later: Event) -> float:
        assert later.reached, "read before the device was there"
        return (later.at_s - self.at_s) * 1000


def test_times_on_the_device_lie_between_marks(encoder: ChainEncoder) -> None:
    events = [Event(at_s) for at_s in (0.125, 0.375, 0.5)]
    (step,) = _steps(encoder, _finished(_step(False), marks=DeviceMarks(events)))
    assert (step.gpu_draft_s, step.gpu_probe_s) == (0.25, 0.125)
    (step,) = _steps(encoder, _passed(_step(False), marks=DeviceMarks(events[:2])))
    assert (step.gpu_draft_s, step.gpu_probe_s) == (0.25, None)


def test_what_a_step_took_is_told_to_the_sampler(writer: TraceWriter) -> None:
    sampler = Sampler(every=4)
    recorded = _finished(_step(False), step_s=2.0, probe_s=0.5, core_s=0.25)
    passed = _passed(_step(False), step_s=2.0, probe_s=0.25, core_s=0.25)
    idle = _passed(None, step_s=9.0, probe_s=0.0)
    _encoder(writer, sampler).rows([recorded, *[passed] * 3, *[idle] * 9])
    costs = sampler.costs
    assert costs.step_s == 1.75, "without the probe's share, and only of steps that draft"
    assert costs.passed_s == pytest.approx(0.5, abs=0.1)
    assert costs.recorded_s == pytest.approx(0.75, abs=0.1)


class Clock:
    """Stands in for the encoder's clocks."""

    wall_s = thread_s = 0.0

    def monotonic(self) -> float:
        return self.wall_s

    def thread_time(self) -> float:
        return self.thread_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(encoder_module, "time", made)
    return made


def test_a_recorded_step_does_not_pay_for_the_rows_of_the_others(
    writer: TraceWriter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of_steps = encoder_module.step_rows

    def slow(*given: Any) -> Any:
        clock.thread_s += 5.0
        return rows_of_steps(*given)

    monkeypatch.setattr(encoder_module, "step_rows", slow)
    encoder = _encoder(writer, sampler := Sampler(every=4))
    encoder.rows([*[_passed(_step(False))] * 9, _finished(_step(False))])
    assert sampler.costs.recorded_s < 5.0


@pytest.mark.parametrize(("passed_s", "share"), [(0.4, 1.0), (4.0, 0.1)])
def test_what_else_the_writers_thread_takes_counts_for_the_steps_that_it_met(
    passed_s: float, share: float, writer: TraceWriter, clock: Clock
) -> None:
    """The thread also works while the engine has no request: of four seconds with 0.4 s of steps, a
    tenth of its time met a step."""
    encoder = _encoder(writer, sampler := Sampler(every=4))
    passed = _passed(_step(False), probe_s=0.0)
    writer.spent_s = 1.0  # before the first flush
    encoder.rows([passed] * 4)
    assert sampler.costs.passed_s == 0.0
    writer.spent_s, clock.wall_s = 3.0, passed_s
    encoder.rows([passed._replace(time_s=0.1 * n, step_s=0.1) for n in range(4)])
    assert sampler.costs.passed_s == pytest.approx(share * 2.0 / 4)


def test_requests_that_were_not_chosen_are_left_out(encoder: ChainEncoder) -> None:
    done = _finished(_step(False, False, False), chosen=np.array([False, True, True]))
    assert [chain.request for chain in _chains(encoder, done)] == ["r1", "r2"]
    assert _steps(encoder, _finished(_step(False, False, False)))[0].chains == 3


def test_many_steps_at_once_give_what_each_gives_alone(encoder: ChainEncoder) -> None:
    ids = torch.arange(6).view(1, 6)

    def steps() -> list[StepRecord]:
        distances = _landing(torch.ones(1, 4 * LAYERS * 8))
        return [
            _finished(_step(False, True), number=1, rate=0.5),
            _passed(None, number=2),
            _finished(_step(False, False, k=4), number=3, position=MAX_SLOTS - 3),
            _finished(_step(False), number=4, ids=ids),
            _finished(_step(False), number=5),
            _passed(_step(True, False), number=6),
            _finished(_step(False), number=7, distance_mass=distances),
        ]

    together = _chains(encoder, *steps())
    assert [row.step for row in _steps(encoder, *steps())] == [1, 2, 3, 4, 5, 6, 7]
    alone = [chain for done in steps() for chain in _chains(encoder, done)]
    assert {chain.step for chain in together} == {1, 3, 4, 5, 7}
    by_chain = {(c.step, c.request): c for c in together}
    assert len(by_chain) == len(together) == len(alone)
    for chain in alone:
        # A chunked prompt is remembered from the first pass on.
        other = replace(by_chain[chain.step, chain.request], chunked_prefill=chain.chunked_prefill)
        np.testing.assert_equal(asdict(other), asdict(chain))


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
        nothing: Any = object()
        return _passed(
            None,
            number=number,
            time_s=ended,
            k=4,
            capture=Capture(nothing, nothing, None, values=nothing) if recorded else None,
            marks=DeviceMarks([Event(at_s) for at_s in marks]),
            requests=1,
            step_s=ended - begun,
            draft_s=0.0,
            probe_s=recorded * self.probe_host_s,
        )


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


def test_steps_whose_neighbour_is_missing_have_no_period(writer: TraceWriter) -> None:
    sampler = Sampler(every=1)
    feedback = CostFeedback(sampler, writer)
    engine = Engine(host_s=0.004, device_s=0.0067)
    first = engine._step(1, 0.0, 0.004, [0.005, 0.006, 0.0061])
    third = engine._step(3, 9.0, 9.004, [9.005, 9.006, 9.0061])
    feedback.report_steps([first, third])
    assert sampler.costs.step_s == pytest.approx(0.004 - engine.probe_host_s)
    assert sampler.costs.recorded_s == pytest.approx(engine.probe_host_s)
