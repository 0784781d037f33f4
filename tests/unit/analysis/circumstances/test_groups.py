"""Rounds by circumstance, and intervals by depth, against the rows that they are made of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.simulate.truth import Prompts, Truth
from support.simulate.write import simulate

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import summarise
from driftscope.trace.reader import Trace, read_trace

TRUTH = Truth(
    requests=60,
    rounds=12,
    batches=(1, 4, 12),
    rates=(1.0,),
    k_zero_above=8,
    prompts=(
        Prompts(label="cold"),
        Prompts(label="hot", temperature=0.8, shift=-0.8),
        Prompts(label="unsaid", temperature=None),
    ),
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("groups") / "run", TRUTH))


@pytest.fixture(scope="module")
def run(trace: Trace) -> RunSummary:
    return summarise(trace, "run")


def test_batch_sizes_are_those_of_the_steps(trace: Trace, run: RunSummary) -> None:
    """Decode steps without a draft count for a step's size, and are no rounds."""
    verify = trace.verify.to_pylist()
    size = Counter((row["replica"], row["step"]) for row in verify)
    rounds, tokens = Counter[int](), Counter[int]()
    for row in verify:
        if row["drafted"]:
            power = size[row["replica"], row["step"]].bit_length() - 1
            rounds[power] += 1
            tokens[power] += row["accepted"] + 1
    assert len(rounds) > 2
    names = ["1" if not p else f"{2**p} to {2 ** (p + 1) - 1}" for p in sorted(rounds)]
    assert [group.name for group in run.groups.batch] == names
    for power, group in zip(sorted(rounds), run.groups.batch, strict=True):
        assert group.rounds == rounds[power]
        assert group.mean_length == pytest.approx(tokens[power] / rounds[power])


def test_temperatures_leave_out_what_is_not_known(run: RunSummary) -> None:
    by_label = {segment.label: segment for segment in run.segments}
    cold, hot = run.groups.temperature
    assert (cold.name, hot.name) == ("0", "0.8")
    assert (cold.rounds, hot.rounds) == (by_label["cold"].rounds, by_label["hot"].rounds)
    assert hot.mean_length == pytest.approx(by_label["hot"].mean_length)
    assert hot.mean_length < cold.mean_length


def test_finish_reasons(trace: Trace, run: RunSummary) -> None:
    known = Counter(trace.request.column("finish_reason").to_pylist())
    assert {group.name for group in run.groups.finish} <= set(known)
    for group in run.groups.finish:
        assert group.requests <= known[group.name]


def test_intervals_by_depth_hold_their_means_and_shrink_with_requests(run: RunSummary) -> None:
    means = {
        "self_mass": run.attention.self_mass,
        "sink_mass": run.attention.sink_mass,
        "fed_rms": run.hidden.fed_rms,
        "postnorm_rms": run.hidden.postnorm_rms,
        "top1": run.confidence.top1,
        "entropy": run.confidence.entropy,
    }
    for name, mean in means.items():
        assert mean is not None
        for value, spread in zip(mean, run.spread[name], strict=True):
            if spread is None:  # no slot of the chain lies before depth 1
                assert (name, value) == ("self_mass", 0)
                continue
            assert spread.low <= value <= spread.high, name
    first, *later = run.spread["growth"]
    assert first is not None and (first.low, first.high) == (1.0, 1.0)
    true = TRUTH.states() / TRUTH.fed
    inside = [s is not None and s.low <= t <= s.high for s, t in zip(later, true[1:], strict=True)]
    assert np.mean(inside) > 0.5


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    alone = summarise(read_trace(simulate(tmp_path / "run", Truth(requests=1, rounds=5))), "run")
    assert alone.spread == {}
