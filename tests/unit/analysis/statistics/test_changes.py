"""Splits at any moment, and the joint test of all depths: what they find, how often by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import combine_pvalues
from support.simulate import Truth
from support.simulate.sums import side

from driftscope.analysis.compare import MARGINAL, Comparison, comparison
from driftscope.analysis.pairing import BY_ID, UNPAIRED, Pairing
from driftscope.analysis.statistics.changes import (
    LEAST,
    LEAST_CLUSTERS,
    ORDERS,
    STRETCH_BY_CHANCE,
    Lifetimes,
    RequestSeries,
    cells,
    duration_quantile,
    fisher,
    largest_split,
    odd_stretch,
    paired_step,
    residuals,
    selection_of,
    split_statistic,
    step_ratio,
)
from driftscope.analysis.statistics.permutation import DRAWS, joint
from driftscope.analysis.statistics.ratio import Ratio, intervals, ratio_of

pytestmark = pytest.mark.slow


def _requests(values: np.ndarray, cluster: np.ndarray | None = None) -> RequestSeries:
    n = len(values)
    return RequestSeries(
        tokens=values,
        rounds=np.ones(n),
        cluster=np.arange(n) if cluster is None else cluster,
    )


def _p(requests: RequestSeries) -> float:
    found = largest_split(requests, np.random.RandomState(1))
    return found.p


def test_two_p_values_are_joined_as_fisher_does() -> None:
    assert fisher([0.2]) == 0.2
    for pair in ([0.04, 0.5], [0.001, 0.001], [1.0, 1.0]):
        assert fisher(pair) == pytest.approx(combine_pvalues(pair).pvalue)


def test_the_statistic_is_the_weighted_difference_of_means() -> None:
    tokens, rounds = np.array([3.0, 8.0, 2.0, 1.0]), np.array([1.0, 2.0, 1.0, 1.0])
    found = split_statistic(tokens, rounds, 1)
    gap = abs(11 / 3 - 3 / 2) * np.sqrt(3 * 2)
    assert found[2] == pytest.approx(gap)
    assert found[0] == 0


def test_a_step_is_found_at_its_place() -> None:
    values = np.random.RandomState(2).standard_normal(120) + 2.0 * (np.arange(120) >= 70)
    found = largest_split(_requests(values), np.random.RandomState(1))
    assert found.p == 1 / (1 + ORDERS)
    assert abs(found.at - 70) <= 2


@pytest.mark.parametrize(("values", "within"), [(24, 1), (1000, 8)])
def test_a_stretch_that_differs_is_found_at_its_place(values: int, within: int) -> None:
    random = np.random.RandomState(5)
    series = random.normal(0.0, 0.1, values)
    begin, end = values // 3, 2 * values // 3
    series[begin:end] += 0.5
    found = odd_stretch(series)
    assert abs(found.start - begin) <= within and abs(found.stop - end) <= within


def test_independent_values_seldom_have_an_odd_stretch() -> None:
    random = np.random.RandomState(6)
    found = [odd_stretch(random.normal(0.0, 1.0, 30)) is not None for _ in range(100)]
    assert sum(found) <= 100 * STRETCH_BY_CHANCE + 12
    assert odd_stretch(np.zeros(30)) is None
    assert odd_stretch(random.normal(0.0, 1.0, 8)) is None, "too few"


def test_too_few_clusters_are_no_test() -> None:
    values = np.random.RandomState(2).standard_normal(100)
    assert largest_split(_requests(values[: 2 * LEAST - 1]), np.random.RandomState(1)) is None
    few = np.repeat(np.arange(5), 20)
    assert largest_split(_requests(values, few), np.random.RandomState(1)) is None


def test_sessions_that_differ_are_no_change() -> None:
    """These numbers are a change if every request counts for itself."""
    random, calls = np.random.RandomState(3), np.zeros(2)
    for _ in range(60):
        session = np.repeat(np.arange(30), 10)
        values = random.standard_normal(30)[session] + 0.5 * random.standard_normal(300)
        calls += [_p(_requests(values, session)) <= 0.05, _p(_requests(values)) <= 0.05]
    assert calls[0] <= 8
    assert calls[1] >= 40


def test_a_step_within_sessions_that_go_on_is_found() -> None:
    """The sessions' own levels hide it from a comparison of clusters in order."""
    random, session = np.random.RandomState(4), np.arange(300) % 30
    values = 3.0 * random.standard_normal(30)[session] + random.standard_normal(300)
    assert _p(_requests(values, session)) > 0.05
    stepped = _requests(values + 1.0 * (np.arange(300) >= 180), session)
    found = largest_split(stepped, np.random.RandomState(1))
    assert found.p < 0.01
    assert abs(found.at - 180) <= 15


def test_the_difference_over_clusters_is_that_of_two_groups_where_none_is_in_both() -> None:
    random = np.random.RandomState(5)
    tokens, rounds = random.standard_normal(40) + 3, random.randint(1, 5, 40).astype(float)
    after = (np.arange(40) >= 25).astype(float)
    found = step_ratio(tokens, rounds, np.arange(40), after)
    sides = [ratio_of(tokens[m, None], rounds[m, None]) for m in (after == 0, after == 1)]
    assert found.value[0] == pytest.approx(sides[1].value[0] - sides[0].value[0])
    error = np.hypot(*(float(side.error[0]) for side in sides))
    assert found.error[0] == pytest.approx(error, rel=0.05)
    assert step_ratio(tokens, rounds, np.arange(40), np.zeros(40)) is None
    assert intervals(found) is not None


def test_repeated_prompts_are_compared_with_themselves() -> None:
    """Prompts differ much, and hard ones come later; each loses half a token."""
    prompt = np.concatenate([np.arange(20), np.arange(20)[::-1]])
    after = np.repeat([0.0, 1.0], 20)
    tokens = 5.0 - 0.2 * prompt - 0.5 * after
    value, spread, prompts = paired_step(tokens, np.ones(40), prompt, after)
    assert (value, prompts) == (pytest.approx(-0.5), 20)
    assert spread.high < 0
    few = np.where(prompt < LEAST - 1, prompt, -1)
    assert paired_step(tokens, np.ones(40), few, after)[1] is None


def _text(values: np.ndarray) -> np.ndarray:
    return values.astype(str)


def test_a_cell_of_few_clusters_is_pooled_upwards() -> None:
    label = np.repeat(["a", "b"], [30, 12])
    context = np.array(["1"] * 20 + ["2"] * 7 + ["3"] * 3 + ["1"] * 12)
    found = cells(np.arange(42), (label, context))
    assert found[:20].tolist() == [found[0]] * 20
    assert found[20:30].tolist() == [found[20]] * 10, "7 and 3 requests of a label together"
    assert found[30:].tolist() == [found[30]] * 12
    assert len({found[0], found[20], found[30]}) == 3


def test_requests_of_few_sessions_make_no_cell_of_their_own() -> None:
    label = np.repeat(["a", "b"], [30, 30])
    few = np.concatenate([np.arange(30), 30 + np.arange(30) % (LEAST_CLUSTERS - 1)])
    assert len(set(cells(np.arange(60), (label,)).tolist())) == 2
    own, other = cells(few, (label,))[[0, 59]]
    assert own != other, "what is left is a cell of the last resort"
    assert residuals(np.ones(60), np.ones(60), few, (label,)).tolist() == [0.0] * 60


def test_a_step_stays_where_the_mix_does() -> None:
    """Both kinds lose a token half-way; the residuals show all of it."""
    label, late = _text(np.arange(200) % 2), np.arange(200) >= 100
    tokens = 3.0 + (label == "1") - late
    left = residuals(tokens, np.ones(200), np.arange(200), (label,))
    assert np.allclose(left, 0.5 - late)


def test_every_factor_counts_where_cells_are_small() -> None:
    """Nine contexts by two batch sizes: no cell has 10 requests, and each factor has an effect."""
    context, batch = np.arange(90) % 9, np.arange(90) // 45
    tokens = 3.0 + 0.2 * context - 1.0 * batch
    names = (np.full(90, "all"), _text(context), _text(batch))
    left = residuals(tokens, np.ones(90), np.arange(90), names)
    assert np.abs(left).max() < 1e-9


def _lives(start: list[float], last: list[float], ended: list[bool], end_s: float) -> Lifetimes:
    n = len(start)
    return Lifetimes(
        start_s=np.array(start),
        last_s=np.array(last),
        end_s=np.full(n, end_s),
        ended=np.array(ended),
        rounds=np.full(n, 10),
    )


def test_the_product_limit_estimate_by_hand() -> None:
    """One of 4 requests ends after 1 s, one is last seen after 2 s, two end after 3 and 4 s:
    S(1) = 3/4, S(3) = 3/4 x 1/2, S(4) = 0."""
    seen, ended = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True])
    assert [duration_quantile(seen, ended, share) for share in (0.25, 0.26, 0.62, 0.63)] == [
        1.0,
        3.0,
        3.0,
        4.0,
    ]


def test_a_quantile_beyond_every_end_is_not_known() -> None:
    seen = np.array([1.0, 5.0])
    assert duration_quantile(seen, np.array([True, False]), 0.95) is None
    assert duration_quantile(seen, np.array([False, False]), 0.5) is None


def test_requests_are_chosen_by_when_they_began() -> None:
    """Requests take 2 s. The last one runs; of those that began before, all are used, also the
    one that takes longer and runs still."""
    start = [float(n) for n in range(40)]
    ended = [n not in (7, 39) for n in range(40)]
    last = [begin + 2.0 if done else 39.5 for begin, done in zip(start, ended, strict=True)]
    chosen = selection_of(_lives(start, last, ended, 39.5))
    assert chosen.duration_s == 2.0
    assert chosen.enough
    assert np.flatnonzero(~chosen.kept).tolist() == [38, 39]
    assert chosen.kept[7]


TRUTH = Truth(requests=40, rounds=20, k=4)
FIRST = TRUTH.conditional[0]
WORLDS = {
    "dead": ((1e-9,) * 4, 1),
    "dead from 2": ((FIRST, *(1e-9,) * 3), 2),
    "halved": ((FIRST / 2, *TRUTH.conditional[1:4]), 1),
}
"""Conditional acceptance of a broken drafter, and the depth from which it differs."""


def _compared(first: Truth, second: Truth, trial: int, *, paired: bool) -> Comparison:
    a = side(replace(first, seed=2 * trial, prompts_seed=trial))
    b = side(replace(second, seed=2 * trial + 1, prompts_seed=trial if paired else 10_000 + trial))
    rows = np.arange(len(a.labels) if paired else 0)
    how = Pairing(how=BY_ID if paired else UNPAIRED, first=rows, second=rows, alone=0)
    return comparison(a, b, ("healthy", "other"), how)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_a_broken_drafter_is_always_found(world: str, paired: bool) -> None:
    conditional, depth = WORLDS[world]
    broken = replace(TRUTH, conditional=conditional)
    found = [_compared(TRUTH, broken, trial, paired=paired) for trial in range(20)]
    assert all(depth in split.apart_at for split in found)
    assert sum(split.parts_from == depth for split in found) >= 17
    for split in found:
        at = split.at(MARGINAL)[depth - 1]
        assert at.interval is not None and at.interval.high < 0


@pytest.mark.parametrize("paired", [True, False])
def test_the_bound_holds_every_true_difference(paired: bool) -> None:
    """Simultaneous intervals of all depths hold the truth in 19 of 20 runs."""
    other = replace(TRUTH, conditional=(0.75, 0.7, 0.66, 0.6))
    truth, held = other.marginal() - TRUTH.marginal(), 0
    for trial in range(200):
        ends = [d.simultaneous for d in _compared(TRUTH, other, trial, paired=paired).at(MARGINAL)]
        held += all(e and e.low <= t <= e.high for e, t in zip(ends, truth, strict=True))
    assert held / 200 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)


def test_a_depth_at_which_neither_run_accepts_still_has_an_interval() -> None:
    """0 of about 800 rounds each: the difference is below 3.7 / n, for all depths a bit more."""
    dead = replace(TRUTH, conditional=(0.8, 0.7, 1e-9, 0.5))
    found = _compared(dead, dead, 0, paired=True)
    for difference in found.at(MARGINAL)[2:]:
        assert difference.p is None and difference.difference == 0
        assert -0.006 < difference.interval.low < 0 < difference.interval.high < 0.006
        assert difference.simultaneous.low < difference.interval.low
    assert found.bound is not None


def _ratio(top: list[list[float]], rounds: float = 10.0) -> Ratio:
    sums = np.array(top, dtype=np.float64)
    return ratio_of(sums, np.full((len(sums), 1), rounds))


def test_the_most_extreme_signs_are_as_rare_as_they_are() -> None:
    """Every one of 6 pairs differs the same way: 2 of 64 sign patterns are as extreme."""
    a = _ratio([[1.0], [2.0], [3.0], [2.0], [1.0], [3.0]])
    b = _ratio([[3.0], [5.0], [5.5], [5.0], [3.5], [6.0]])
    found = joint(a, b, paired=True)
    assert found.p[0] == pytest.approx(2 / 64, abs=4 * np.sqrt(2 / 64 / DRAWS))
    assert found.gap[0] == pytest.approx(b.value[0] - a.value[0])


def test_the_error_is_the_jackknife_s() -> None:
    rng = np.random.default_rng(1)
    a, b = (_ratio(rng.uniform(0, 10, (30, 3)).tolist()) for _ in range(2))
    found = joint(a, b, paired=False)
    assert found.error == pytest.approx(np.sqrt(np.square(a.error) + np.square(b.error)))
    moved = np.square(b.influence - a.influence).sum(axis=0)
    assert joint(a, b, paired=True).error == pytest.approx(np.sqrt(29 / 30 * moved))
