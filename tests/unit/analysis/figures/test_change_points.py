"""Moments at which acceptance changed, on simulated runs of known truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.simulate import Prompts, Truth, simulate
from support.simulate.sums import series

from driftscope.analysis.figures.change_points import Changes, Series, changes
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.statistics.changes import LEAST
from driftscope.pipeline import summarise

STEP = Truth(requests=120, rounds=20, change=(0.5, -1.5))


def found_in(truth: Truth) -> Changes:
    found = changes(series(truth))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_where_it_is(seed: int) -> None:
    (point,) = found_in(replace(STEP, seed=seed, prompts_seed=seed)).points
    assert abs(point.time_s - 60) <= 5
    assert point.interval is not None
    assert point.interval.high < 0
    assert point.after - point.before == pytest.approx(point.difference)


def test_levels_lie_between_the_points_and_hold_every_round() -> None:
    data = series(STEP)
    found = changes(data)
    assert found is not None
    assert len(found.levels) == len(found.points) + 1
    assert sum(level.requests for level in found.levels) == found.requests == 120
    assert sum(level.rounds for level in found.levels) == data.rounds.sum()
    for point, before, after in zip(found.points, found.levels, found.levels[1:], strict=False):
        assert before.end_s == point.time_s == after.start_s
        assert (before.mean_length, after.mean_length) == (point.before, point.after)


def test_a_flat_run_is_seldom_cut() -> None:
    """5 of 100 runs of one kind are to be expected; 12 or more have a chance of 0.4 %."""
    flat = Truth(requests=60, rounds=12)
    cut = [bool(found_in(replace(flat, seed=n, prompts_seed=n)).points) for n in range(100)]
    assert sum(cut) < 12


def test_a_step_back_gives_two_points() -> None:
    data = series(replace(STEP, requests=180, change=None))
    low = slice(60, 120)
    data.tokens[low] = data.rounds[low] + 0.4 * (data.tokens[low] - data.rounds[low])
    found = changes(data)
    assert found is not None
    assert [point.difference > 0 for point in found.points] == [False, True]
    assert found.gradual is False


def test_a_slope_is_told_from_a_step() -> None:
    assert found_in(replace(STEP, change=None, decay=-2.0)).gradual is True
    assert found_in(STEP).gradual is False


def test_a_changed_mix_is_not_held_against_the_drafter() -> None:
    """Easy requests give way to hard ones half-way, and each kind accepts as it always did."""
    data = series(Truth(requests=200, rounds=20, between=0.1))
    easy = np.random.RandomState(1).random_sample(200) < np.repeat([0.9, 0.1], 100)
    accepted = (data.tokens - data.rounds) * np.where(easy, 1.0, 0.3)
    mixed = Series(
        start_s=data.start_s,
        end_s=data.end_s,
        tokens=data.rounds + accepted,
        rounds=data.rounds,
        labels=np.where(easy, "easy", "hard"),
    )
    found = changes(mixed)
    assert found is not None
    assert not found.points
    assert found.raw is not None, "the requests as they came did change"
    assert found.raw.same_mix is not None
    assert found.raw.adjusted is not None
    for left in (found.raw.same_mix, found.raw.adjusted):
        assert abs(left) < 0.2 * abs(found.raw.difference)


def test_too_few_requests_say_nothing() -> None:
    assert changes(series(Truth(requests=2 * LEAST - 1))) is None


def test_it_comes_with_the_summary(tmp_path: Path) -> None:
    kinds = (Prompts(label="a"), Prompts(label="b"))
    run = simulate(tmp_path / "run", replace(STEP, prompts=kinds, batches=(1,), rounds=6))
    found = summarise(open_run(run), "run").changes
    assert found is not None
    (point,) = found.points
    middle = (found.levels[0].start_s + found.levels[-1].end_s) / 2
    assert point.time_s == pytest.approx(middle, abs=0.15 * (found.levels[-1].end_s - middle))
    assert point.same_mix == pytest.approx(point.difference, rel=0.3)
