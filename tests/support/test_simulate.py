"""Simulated traces match their stated truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import summarise
from driftscope.trace.reader import Trace, read_trace

LARGE = Truth(
    requests=3000,
    rounds=20,
    replicas=2,
    layers=2,
    prompts=(Prompts(label="easy", shift=0.5), Prompts(label="hard", share=2.0, shift=-0.5)),
    rates=(1.0, 0.25),
    undrafted={"structured_output": 0.05},
    batches=(4, 16),
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("simulated") / "run", LARGE))


@pytest.fixture(scope="module")
def run(trace: Trace) -> RunSummary:
    return summarise(trace, "run")


def test_acceptance_is_that_of_the_truth(run: RunSummary) -> None:
    assert run.acceptance.marginal == pytest.approx(LARGE.marginal(), abs=0.02)
    assert run.acceptance.mean_length == pytest.approx(LARGE.mean_length(), rel=0.02)
    for kind, segment in enumerate(run.segments):
        assert segment.label == LARGE.prompts[kind].label
        assert segment.mean_length == pytest.approx(LARGE.mean_length(kind), rel=0.02)


def test_masses_and_states_are_those_of_the_truth(run: RunSummary) -> None:
    assert run.attention.sink_mass == pytest.approx(LARGE.sinks(), rel=0.01)
    assert run.attention.self_mass == pytest.approx(LARGE.selves(), rel=0.01)
    assert run.hidden.growth == pytest.approx(LARGE.growth, rel=0.01)
    assert run.hidden.aux_rms == pytest.approx(LARGE.aux, rel=0.01)


def test_a_calibrated_drafter_has_no_calibration_error(run: RunSummary) -> None:
    depths = run.confidence.calibration.by_depth
    assert all(at.ece < 0.02 for at in depths[:3]), "with few tokens the error equals chance"
    assert depths[0].tokens == run.recording.verified_chains


def test_a_drafter_that_is_too_sure_has_that_error(tmp_path: Path) -> None:
    """The error is half of the distance to certainty, at depth 1 on average half of 1 - 0.76."""
    truth = Truth(requests=400, miscalibration=0.5)
    run = summarise(read_trace(simulate(tmp_path / "run", truth)), "run")
    assert run.confidence.calibration.by_depth[0].ece == pytest.approx(
        0.5 * (1 - truth.marginal()[0]), abs=0.02
    )


def test_steps_and_sampling_are_those_of_the_truth(run: RunSummary, trace: Trace) -> None:
    assert run.fallback.by_reason["structured_output"] / run.fallback.steps == pytest.approx(
        0.05, abs=0.005
    )
    assert set(trace.draft.column("rate").to_pylist()) == {1.0, 0.25}
    assert run.recording.chains / (run.rounds + run.requests) == pytest.approx(0.625, rel=0.05)
    assert trace.step.column("requests").to_numpy().max() == 16


def test_the_same_truth_gives_the_same_bytes(tmp_path: Path) -> None:
    truth = Truth(requests=20)
    first, second = simulate(tmp_path / "a", truth), simulate(tmp_path / "b", truth)
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
