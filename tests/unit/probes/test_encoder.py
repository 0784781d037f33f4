"""From a step's numbers to its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
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
from driftscope_probes.engine import NO_LENGTHS, DraftStep
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
    batch = len(prefilling)
    return DraftStep(
        requests=tuple(f"r{b}" for b in range(batch)),
        prefilling=bytes(prefilling),
        k=k,
    )


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


def _finished(
    step: DraftStep | None,
    *,
    recorded: bool = True,
    ids: torch.Tensor | None = None,
    distance_mass: Landing | None = None,
    chosen: Any = None,
    **changes: Any,
) -> StepRecord:
    capture = scheduled = None
    if step is not None and not recorded:
        scheduled = _scheduled(step)
    if step is not None and recorded:
        capture = Capture(
            step=step,
            prompt_tokens=np.arange(10, 10 + len(step.requests)),
            chosen=chosen,
            values=_landing(_values(step, changes.pop("position", 20))),
            ids=None if ids is None else _landing(ids.to(torch.int32).view(torch.float32)),
            distance_mass=distance_mass,
            execution="eager",
        )
    new = getattr(changes.get("scheduled", scheduled), "scheduled_new_reqs", [])
    lengths = prompt_lengths(new)
    plain = {
        "number": 4,
        "time_s": 1.5,
        "scheduled": scheduled,
        "lengths": lengths,
        "k": None if step is None else step.k,
        "capture": capture,
        "marks": NO_MARKS,
        "rate": 0.25,
        "requests": len(step.requests) if step else 0,
        "step_s": 0.5,
        "draft_s": 0.25,
        "probe_s": 0.125,
        "core_s": 0.0,
    }
    return StepRecord(**{**plain, **changes})  # type: ignore[arg-type]


def _scheduled(step: DraftStep) -> Any:
    """Return a schedule of prompts of ten tokens; a prompt that continues has one token left."""
    tokens = {
        name: 10 - goes_on for name, goes_on in zip(step.requests, step.prefilling, strict=True)
    }
    return schedule(tokens, new=dict.fromkeys(step.requests, (10,)))


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
    first = _finished(_step(False, False))
    capture = first.capture
    assert capture is not None
    capture.awaited = True
    assert not _chains(encoder, first)
    capture.near_misses = _landing(torch.tensor([[3.0, 0.25, 1.0], [torch.nan] * 3]))
    rejected, accepted = _chains(encoder, _finished(None))
    assert (rejected.target_token_rank, rejected.rejected_closeness) == (3, 0.25)
    assert rejected.rejected_excluded is True
    assert accepted.target_token_rank is accepted.rejected_excluded is None


def test_no_chain_waits_at_the_end_of_a_run(encoder: ChainEncoder) -> None:
    done = _finished(_step(False, False))
    assert done.capture is not None
    done.capture.awaited = True
    blocks = encoder.handed_over([tuple(done), END])
    assert [block.rows for block in blocks if block.record == "draft"] == [2]


def test_hooks_that_take_longer_than_their_step_leave_a_readable_status(
    writer: TraceWriter,
) -> None:
    encoder = _encoder(writer, sampler := Sampler(every=4))
    _rows(encoder, "step", *[_finished(_step(False), step_s=0.01, probe_s=0.5) for _ in range(8)])
    assert sampler.overhead >= 0.0


def test_a_step_comes_before_its_chains(encoder: ChainEncoder) -> None:
    steps, *chains = encoder.rows([_finished(_step(False, False))])
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
    assert [chain.record for chain in chains] == ["draft"]


def test_a_chain_has_its_own_requests_numbers(encoder: ChainEncoder) -> None:
    first, second = _chains(encoder, _finished(_step(False, False)))
    assert (first.request, second.request) == ("r0", "r1")
    assert (second.position, second.prompt_tokens) == (21, 11)
    assert (second.step, second.batch, second.k, second.layers) == (4, 2, K, LAYERS)
    assert (second.rate, second.heads, second.strategy) == (0.25, HEADS, "keys")
    assert second.execution == "eager"
    assert second.in_rms == [101.0, 102.0, 103.0], "of the chain's own length"
    assert second.sink_mass == pytest.approx([2.0, 2.1, 3.0, 3.1, 4.0, 4.1]), "depth-major"
    assert second.aux_rms == [0.0, 1.0]
    assert (first.fc_rms, second.fc_rms) == (0.5, 1.5)


def test_what_the_drafter_does_not_have_is_none(encoder: ChainEncoder) -> None:
    (chain,) = _chains(encoder, _finished(_step(False)))
    absent = {name for name, value in asdict(chain).items() if value is None}
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
    (_, chain) = _chains(encoder, _finished(_step(False, False), ids=ids))
    assert chain.token_ids == [4, 5, 70000]
    (_, chain) = _chains(_encoder(writer), _finished(_step(False, False), ids=ids))
    assert chain.token_ids is None


def test_prefilling_requests_are_dropped(encoder: ChainEncoder) -> None:
    (step,) = _steps(encoder, _finished(_step(True, False, True)))
    assert (step.requests, step.chains) == (3, 1)
    (chain,) = _chains(encoder, _finished(_step(True, False, True)))
    assert (chain.request, chain.batch, chain.fc_rms) == ("r1", 3, 1.5)


def test_a_request_seen_prefilling_is_marked_as_chunked_for_good(encoder: ChainEncoder) -> None:
    assert [c.chunked_prefill for c in _chains(encoder, _finished(_step(True, False)))] == [False]
    for _ in range(2):
        later = _chains(encoder, _finished(_step(False, False)))
        assert [chain.chunked_prefill for chain in later] == [True, False]


def test_a_step_that_is_not_recorded_still_tells_chunked_requests(encoder: ChainEncoder) -> None:
    (step,) = _steps(encoder, _finished(_step(True, False), recorded=False))
    assert (step.recorded, step.chains, step.k) == (False, 1, K)
    later = _chains(encoder, _finished(_step(False, False)))
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
    done = _finished(_step(False), recorded=False, scheduled=object())
    assert [step.chains for step in _steps(encoder, done)] == [1]
    writer.close()
    assert read_statuses(tmp_path / "run")[0].errors == {"prefilling": 1}


def test_faults_in_the_drafters_cache_are_remembered(writer: TraceWriter) -> None:
    encoder, step = _encoder(writer, faults=CacheFaultTracker()), _step(False, False)
    ran_without_the_drafter = _finished(None, scheduled=_scheduled(step))
    again = _finished(step, scheduled=schedule(going_on=dict.fromkeys(step.requests, 10)))
    found = _chains(encoder, ran_without_the_drafter, again)
    assert [chain.chunked_prefill for chain in found] == [True, True]


def test_times_on_the_device_lie_between_marks(encoder: ChainEncoder) -> None:
    class Event(SimpleNamespace):
        reached = False

        def synchronize(self) -> None:
            self.reached = True

        def elapsed_time(self, later: Any) -> float:
            assert later.reached, "read before the device was there"
            return float(later.ms - self.ms)

    marks = DeviceMarks([Event(ms=ms) for ms in (1.0, 3.5, 4.0)])
    (step,) = _steps(encoder, _finished(_step(False), marks=marks))
    assert (step.gpu_draft_s, step.gpu_probe_s) == (0.0025, 0.0005)
    marks = DeviceMarks([Event(ms=ms) for ms in (1.0, 3.5)])
    (step,) = _steps(encoder, _finished(_step(False), recorded=False, marks=marks))
    assert (step.gpu_draft_s, step.gpu_probe_s) == (0.0025, None)


def test_what_a_step_took_is_told_to_the_sampler(writer: TraceWriter) -> None:
    sampler = Sampler(every=4)
    recorded = _finished(_step(False), step_s=2.0, probe_s=0.5, core_s=0.25)
    passed = _finished(_step(False), recorded=False, step_s=2.0, probe_s=0.25, core_s=0.25)
    idle = _finished(None, recorded=False, step_s=9.0, probe_s=0.0)
    _encoder(writer, sampler).rows([recorded, *[passed] * 3, *[idle] * 9])
    costs = sampler.costs
    assert costs.step_s == 1.75, "without the probe's share, and only of steps that draft"
    assert costs.passed_s == pytest.approx(0.5, abs=0.1)
    assert costs.recorded_s == pytest.approx(0.75, abs=0.1)


def test_a_recorded_step_does_not_pay_for_the_rows_of_the_others(
    writer: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, rows_of_steps = [0.0], encoder_module.step_rows

    def slow(*given: Any) -> Any:
        clock[0] += 5.0
        return rows_of_steps(*given)

    monkeypatch.setattr(encoder_module, "step_rows", slow)
    monkeypatch.setattr(
        encoder_module, "time", SimpleNamespace(thread_time=lambda: clock[0], monotonic=lambda: 0.0)
    )
    sampler = Sampler(every=4)
    encoder = _encoder(writer, sampler)
    encoder.rows([*[_finished(_step(False), recorded=False)] * 9, _finished(_step(False))])
    assert sampler.costs.recorded_s < 5.0


@pytest.mark.parametrize(("passed_s", "share"), [(0.4, 1.0), (4.0, 0.1)])
def test_what_else_the_writers_thread_takes_counts_for_the_steps_that_it_met(
    passed_s: float, share: float, writer: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread also works while the engine has no request: of four seconds with 0.4 s of steps, a
    tenth of its time met a step."""
    clock = [0.0]
    monkeypatch.setattr(
        encoder_module,
        "time",
        SimpleNamespace(monotonic=lambda: clock[0], thread_time=lambda: 0.0),
    )
    sampler = Sampler(every=4)
    encoder = _encoder(writer, sampler)
    passed = _finished(_step(False), recorded=False, probe_s=0.0)
    writer.spent_s = 1.0  # before the first flush
    encoder.rows([passed] * 4)
    assert sampler.costs.passed_s == 0.0
    writer.spent_s, clock[0] = 3.0, passed_s
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
            _finished(None, number=2),
            _finished(_step(False, False, k=4), number=3, position=MAX_SLOTS - 3),
            _finished(_step(False), number=4, ids=ids),
            _finished(_step(False), number=5),
            _finished(_step(True, False), number=6, recorded=False),
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
        return StepRecord(
            number=number,
            time_s=ended,
            scheduled=None,
            lengths=NO_LENGTHS,
            k=4,
            capture=_captured() if recorded else None,
            marks=DeviceMarks([Event(at_s) for at_s in marks]),
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
