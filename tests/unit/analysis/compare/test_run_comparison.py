"""Comparisons report real differences between two runs, and not chance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulate import Prompts, Truth, simulate
from support.simulate.sums import side
from typer.testing import CliRunner

from driftscope.analysis.compare.run_comparison import (
    LENGTH,
    MARGINAL,
    Comparison,
    compare,
    comparison,
)
from driftscope.analysis.figures.run_sums import collect
from driftscope.analysis.figures.side import (
    BY_DIGEST,
    BY_ID,
    BY_ORDER,
    UNPAIRED,
    Pairing,
    side_of,
)
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals, rate_intervals
from driftscope.analysis.statistics.multiple_comparisons import ALPHA, holm
from driftscope.cli.app import app

RECORDED = Path(__file__).parent / "data" / "seeds"
DRIFTS = Truth(requests=120, rounds=30)
HOLDS = replace(DRIFTS, seed=8, conditional=(0.8, 0.72, 0.66, 0.75, 0.75, 0.75, 0.75))
"""Better from depth 4 on."""


def _compare(folder: Path, first: Truth, second: Truth) -> Comparison:
    runs = [
        collect(open_run(simulate(folder / str(at), truth)))
        for at, truth in enumerate((first, second))
    ]
    return compare(*runs, labels=("first", "second"))


def test_says_from_which_depth_on_a_run_is_better(tmp_path: Path) -> None:
    found = _compare(tmp_path, DRIFTS, HOLDS)
    assert found.parts_from == 4
    assert found.pairing == BY_ID
    assert found.pairs == 120
    truth = HOLDS.marginal() - DRIFTS.marginal()
    for each in found.at(MARGINAL)[3:]:
        assert each.interval is not None
        assert each.depth is not None
        assert each.interval.low < truth[each.depth - 1] < each.interval.high
        assert each.interval.low > 0


def test_says_nothing_of_two_seeds(tmp_path: Path) -> None:
    found = _compare(tmp_path, DRIFTS, replace(DRIFTS, seed=9))
    assert found.parts_from is None
    assert not any(each.differs for each in found.differences)


def test_says_nothing_of_two_seeds_of_a_real_engine() -> None:
    """EAGLE-3.1 of the trio at temperature 0.8, as `make seeds` records it: without the chains."""
    runs = [str(RECORDED / name) for name in ("seed-1", "seed-2")]
    done = CliRunner().invoke(app, ["compare", *runs, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["verdict"].startswith("no difference is shown: a difference larger than")
    assert found["pairs"] == 32
    tested = [each for each in found["differences"] if each["interval"]]
    assert len(tested) > 4
    for each in tested:
        assert each["first"] != each["second"]
        assert each["interval"]["low"] < 0 < each["interval"]["high"]


def test_pairs_narrow_the_interval(tmp_path: Path) -> None:
    """Requests differ more from each other than two runs of one request do."""
    truth = replace(DRIFTS, between=1.2)
    paired = _compare(tmp_path, truth, replace(truth, seed=9))
    runs = [collect(open_run(tmp_path / name)) for name in ("0", "1")]
    none = np.empty(0, dtype=np.int64)
    unpaired = comparison(
        side_of(runs[0]),
        side_of(runs[1]),
        ("a", "b"),
        Pairing(how=UNPAIRED, first=none, second=none, alone=0),
    )
    (narrow,), (wide,) = paired.at(LENGTH), unpaired.at(LENGTH)
    assert narrow.difference == pytest.approx(wide.difference)
    assert narrow.interval is not None and wide.interval is not None
    ratio = (narrow.interval.high - narrow.interval.low) / (wide.interval.high - wide.interval.low)
    assert ratio < 0.7


def test_other_prompts_are_not_paired(tmp_path: Path) -> None:
    found = _compare(tmp_path, DRIFTS, replace(DRIFTS, prompts_seed=12))
    assert found.pairing == UNPAIRED
    assert found.requests == (120, 120)


@pytest.mark.parametrize(("digests", "how"), [(True, BY_DIGEST), (False, BY_ORDER)])
def test_requests_of_other_names_are_paired_by_their_prompt_or_order_of_arrival(
    tmp_path: Path, digests: bool, how: str
) -> None:
    """One replica and two name requests differently."""
    truth = replace(DRIFTS, digests=digests)
    runs = [
        collect(open_run(simulate(tmp_path / "0", truth))),
        collect(open_run(simulate(tmp_path / "1", replace(truth, seed=8)))),
    ]
    names = runs[1].requests.keys
    at = names.schema.get_field_index("request")
    other = [f"other-{name}" for name in names.column("request").to_pylist()]
    renamed = replace(runs[1].requests, keys=names.set_column(at, "request", [other]))
    found = compare(runs[0], replace(runs[1], requests=renamed), labels=("a", "b"))
    assert found.pairing == how
    assert found.pairs == 120


def test_segments_that_both_runs_have(tmp_path: Path) -> None:
    kinds = (Prompts(label="chat"), Prompts(label="code", shift=0.5))
    worse = (Prompts(label="chat"), Prompts(label="code", shift=-1.0))
    truth = replace(DRIFTS, prompts=kinds, requests=200)
    found = _compare(tmp_path, truth, replace(truth, prompts=worse, seed=8))
    (chat,), (code,) = found.at(LENGTH, "chat"), found.at(LENGTH, "code")
    assert code.differs
    assert code.difference < 0
    assert not chat.differs


def test_runs_of_other_k_are_compared_as_deep_as_both_go(tmp_path: Path) -> None:
    found = _compare(tmp_path, DRIFTS, replace(DRIFTS, k=3, seed=8))
    assert [each.depth for each in found.at(MARGINAL)] == [1, 2, 3]
    assert found.parts_from is None


def test_a_dead_depth_is_not_tested(tmp_path: Path) -> None:
    dead = replace(DRIFTS, conditional=(0.8, 0.7, 0.6, 1e-9, 0.5, 0.5, 0.5))
    found = _compare(tmp_path, dead, replace(dead, seed=8))
    assert all(each.p is None for each in found.at(MARGINAL)[3:])


def test_the_same_run_twice_has_no_difference(tmp_path: Path) -> None:
    found = _compare(tmp_path, DRIFTS, DRIFTS)
    assert all(each.difference == 0 and not each.differs for each in found.differences)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_between_each_test_alone_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    for own, of_all in zip(p, adjusted, strict=True):
        assert own <= of_all <= min(1.0, own * len(p)) + 1e-12
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))


def test_intervals_of_simulated_runs_hold_the_truth() -> None:
    """A small version of `benchmarks/calibration`: 200 runs, 3 standard errors."""
    truth, trials = Truth(requests=40, rounds=20, k=4), 200
    true, hits = np.append(truth.mean_length(), truth.marginal()), np.zeros(5)
    for trial in range(trials):
        rounds = side(replace(truth, seed=trial, prompts_seed=trial)).rounds
        found = (
            *(intervals(rounds.length_ratio()) or ()),
            *(rate_intervals(rounds.marginal_ratio()) or ()),
        )
        hits += [at.low <= value <= at.high for at, value in zip(found, true, strict=True)]
    assert (np.abs(hits / trials - 0.95) < 3 * np.sqrt(0.95 * 0.05 / trials)).all()


@pytest.mark.slow
@pytest.mark.parametrize("paired", [False, True])
def test_two_runs_of_the_same_truth_seldom_differ(paired: bool) -> None:
    truth, trials, called = Truth(requests=40, rounds=20, k=4), 200, 0
    for trial in range(trials):
        first = side(replace(truth, seed=2 * trial, prompts_seed=trial))
        prompts = trial if paired else trials + trial
        second = side(replace(truth, seed=2 * trial + 1, prompts_seed=prompts))
        rows = np.arange(40 if paired else 0)
        how = Pairing(how=BY_ID if paired else UNPAIRED, first=rows, second=rows, alone=0)
        found = comparison(first, second, ("a", "b"), how)
        called += any(each.differs for each in found.differences)
    assert called / trials < ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / trials)


@pytest.mark.parametrize("paired", [True, False])
def test_without_speculation_it_is_times_that_are_compared(tmp_path: Path, paired: bool) -> None:
    truth = replace(DRIFTS, requests=60, batches=(1, 4))
    none = replace(truth, k_zero_above=0, prompts_seed=truth.prompts_seed + (not paired))
    paths = [simulate(tmp_path / name, each) for name, each in (("none", none), ("k7", truth))]
    done = CliRunner().invoke(app, ["compare", *map(str, paths), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["pairing"] == UNPAIRED) is not paired
    tpot, ttft = found["differences"]
    assert tpot["differs"]
    assert tpot["interval"]["low"] < tpot["second"] - tpot["first"] < tpot["interval"]["high"] < 0
    assert found["verdict"].startswith("k7 serves faster")
    assert not ttft["differs"]
    same = CliRunner().invoke(app, ["compare", str(paths[0]), str(paths[0])])
    assert same.output.startswith("no difference in time per output token is shown")


def test_the_command_says_the_verdict_first(tmp_path: Path) -> None:
    paths = [simulate(tmp_path / name, truth) for name, truth in (("a", DRIFTS), ("b", HOLDS))]
    said = CliRunner().invoke(app, ["compare", *map(str, paths)])
    assert said.exit_code == 0, said.output
    assert said.output.startswith("b accepts more from depth 4 on")
    printed = CliRunner().invoke(app, ["compare", *map(str, paths), "--json"])
    content = json.loads(printed.output)
    assert content["parts_from"] == 4
    assert content["correction"] == "max-|t|, signs of pairs drawn"
    assert content["differences"][0]["metric"] == LENGTH
