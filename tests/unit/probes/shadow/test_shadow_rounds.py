"""A recorder with shadow rounds: chains run before the served one, and errors end the shadow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.runs import Spec, manifest
from support.tiny_drafter import Batch, Call, K

from driftscope.trace.read.reader import Trace, read_trace
from driftscope.trace.write.run_directory import create_run
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.settings import Settings
from driftscope_probes.recording.recorder import Recorder
from driftscope_probes.recording.recorder_assembly import assemble_recorder
from driftscope_probes.shadow.shadow_call import VerifiedStep
from driftscope_probes.vllm.loaded_drafter import VllmDrafter
from driftscope_probes.vllm.scheduler.schedule_reader import VllmSchedules

CHAINS = {"pin-size": 1, "hide-chain": 2}
"""The token of which each intervention's chain consists; the served one consists of zeros."""


class Shadowed(Call):
    """A call that notes in `log` what it drafts, for requests at `position`."""

    def __init__(self, batch: Batch, log: list[str], position: int, failing: bool) -> None:
        super().__init__(batch, self._served, self._served)
        self.log, self.position, self.failing = log, position, failing

    def _served(self) -> torch.Tensor:
        self.log.append("served")
        return torch.zeros(2, K, dtype=torch.int64)

    def under(self, intervention: str) -> torch.Tensor:
        self.log.append(intervention)
        if self.failing:
            raise RuntimeError("no such chain")
        return torch.full((2, K), CHAINS[intervention])

    def verified(self) -> VerifiedStep:
        """Each request reads one token, 1, and its newest token is 1, too."""
        at = torch.full((2,), self.position)
        one = torch.ones(2, dtype=torch.int64)
        return VerifiedStep(torch.arange(3), torch.arange(2), at, one, one)


class Engine:
    """Steps of an engine whose target always produces the token 1."""

    def __init__(self, run: Path, drafter: VllmDrafter, settings: Settings) -> None:
        create_run(run, manifest(Spec()))
        self.run, self.proposer = run, SimpleNamespace(model=drafter.model)
        self.writer = TraceWriter(run, source="worker0-1")
        self.recorder: Recorder = assemble_recorder(
            drafter,
            settings,
            self.writer,
            schedules=VllmSchedules(),
            interventions=tuple(CHAINS),
        )
        self.log: list[str] = []
        self.position = 10

    def step(self, *, failing: bool = False, prefilling: bool = False, k: int = K) -> torch.Tensor:
        batch = Batch(self.proposer, (prefilling, prefilling), k=k)
        self.recorder.step_started()
        drafts = self.recorder.draft(Shadowed(batch, self.log, self.position, failing))
        self.recorder.step_ended(2)
        self.position += 1
        assert isinstance(drafts, torch.Tensor)
        return drafts

    def end(self) -> Trace:
        self.recorder.close()
        return read_trace(self.run)


@pytest.fixture
def engine(tmp_path: Path, make_drafter: Callable[[], VllmDrafter]) -> Engine:
    run = tmp_path / "run"
    return Engine(run, make_drafter(), Settings(trace=run, every=1000, shadow_every=4))


def test_chains_run_before_the_served_one_in_each_nth_step(engine: Engine) -> None:
    for _ in range(8):
        assert engine.step().tolist() == [[0] * K] * 2
    shadow_round = [*CHAINS, "served"]
    assert engine.log == [*["served"] * 3, *shadow_round, *["served"] * 3, *shadow_round]


def test_chains_are_compared_with_what_the_target_produces(engine: Engine) -> None:
    for _ in range(4 + K):
        engine.step()
    rows = engine.end().shadow.to_pylist()
    first = [row for row in rows if row["step"] == 4]
    assert {(row["request"], row["intervention"]) for row in first} == {
        (request, each) for request in ("a", "b") for each in CHAINS
    }
    assert all((row["position"], row["known"], row["k"]) == (13, K, K) for row in first)
    assert {row["intervention"]: row["agreed"] for row in first} == {"pin-size": K, "hide-chain": 0}
    assert {row["served_agreed"] for row in first} == {0}


def test_chains_that_still_wait_are_written_at_the_end(engine: Engine) -> None:
    for _ in range(5):
        engine.step()
    assert [row["known"] for row in engine.end().shadow.to_pylist()] == [1] * 4


def test_prefilling_requests_have_no_rows(engine: Engine) -> None:
    for _ in range(4):
        engine.step(prefilling=True)
    assert engine.end().shadow.num_rows == 0


def test_a_chain_of_one_token_has_no_shadow(engine: Engine) -> None:
    for _ in range(8):
        engine.step(k=1)
    assert set(engine.log) == {"served"}


def test_an_error_is_counted_and_ends_the_shadow_alone(engine: Engine) -> None:
    for number in range(12):
        assert engine.step(failing=number == 3).tolist() == [[0] * K] * 2
    assert engine.log == [*["served"] * 3, "pin-size", *["served"] * 9]
    trace = engine.end()
    assert [dict(status.errors) for status in trace.statuses] == [{"shadow_chain": 1}]
    assert trace.shadow.num_rows == 0
    assert trace.step.num_rows == 12
