"""Resampling requests."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from driftscope.analysis.closeup.durations import AT
from driftscope.analysis.findings.finding import Trust
from driftscope.analysis.findings.finding_confidence import judged
from driftscope.analysis.statistics.clusters import mean_interval
from driftscope.analysis.statistics.interval import (
    FEWEST_CLUSTERS,
    Interval,
    difference,
    intervals,
    quantile_interval,
    rate_intervals,
    ratio_of,
)


def test_alike_rounds_within_a_request_do_not_narrow_the_interval() -> None:
    """Ten copies of each round say no more than one: an interval over rounds would think so."""
    random = np.random.RandomState(0)
    per = random.random_sample((40, 1))
    for of in (intervals, rate_intervals):
        single, copied = (
            of(ratio_of(per, np.ones((40, 1)))),
            of(ratio_of(10 * per, np.full((40, 1), 10.0))),
        )
        assert single is not None and copied is not None
        assert np.isclose(single[0].low, copied[0].low)
        assert np.isclose(single[0].high, copied[0].high)


@pytest.mark.parametrize(("requests", "rate"), [(8, 0.5), (60, 0.5), (30, 0.05), (60, 0.05)])
def test_covers_the_truth_about_95_times_in_100(requests: int, rate: float) -> None:
    """1000 simulated runs of requests that differ in how easy they are, and in length."""
    random, trials = np.random.RandomState(1), 1000
    covered = 0
    for _ in range(trials):
        ease = random.beta(8 * rate, 8 * (1 - rate), size=requests)
        rounds = random.randint(20, 60, size=requests)
        accepted = random.binomial(rounds, ease)[:, None].astype(float)
        found = rate_intervals(ratio_of(accepted, rounds[:, None].astype(float)))
        assert found is not None
        covered += found[0].low <= rate <= found[0].high
    assert 0.925 <= covered / trials <= 0.975


@pytest.mark.parametrize(("n", "share"), [(40, 0.5), (200, 0.5), (200, 0.95)])
def test_a_quantile_s_interval_covers_it_whatever_the_shape(n: int, share: float) -> None:
    random, trials = np.random.RandomState(2), 600
    truth, covered = float(np.exp(ndtri(share))), 0
    for _ in range(trials):
        kept = np.quantile(random.lognormal(size=n), AT)
        found = quantile_interval(share, n, AT, kept)
        assert found is not None
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / trials <= 0.985


def test_a_quantile_near_the_end_of_few_values_has_no_interval() -> None:
    assert quantile_interval(0.95, 20, (0.0, 1.0), (0.0, 1.0)) is None
    assert quantile_interval(0.5, 0, (0.0, 1.0), (0.0, 1.0)) is None


@given(st.integers(0, 30), st.integers(FEWEST_CLUSTERS, 30))
def test_a_rate_stays_a_rate(accepted: int, requests: int) -> None:
    counts = np.arange(requests)[:, None] < accepted
    found = rate_intervals(ratio_of(counts.astype(float), np.ones((requests, 1))))
    assert found is not None
    value = counts.mean()
    assert found[0] is not None
    assert 0 <= found[0].low <= value <= found[0].high <= 1
    assert found[0].low < found[0].high


def test_one_request_says_nothing_of_how_requests_differ() -> None:
    one = ratio_of(np.ones((1, 1)), np.ones((1, 1)))
    assert intervals(one) is rate_intervals(one) is None
    assert one.value[0] == 1.0


def test_the_error_is_that_of_leaving_each_request_out() -> None:
    random = np.random.RandomState(2)
    bottom = random.randint(1, 9, (20, 1)).astype(float)
    top = random.random_sample((20, 1)) * bottom
    found = ratio_of(top, bottom)
    left_out = (top.sum() - top) / (bottom.sum() - bottom)
    jackknife = np.sqrt(19 / 20 * np.square(left_out - found.value).sum())
    assert found.error[0] == pytest.approx(jackknife)


def test_a_difference_covers_its_truth_as_often_as_it_says() -> None:
    random, trials, n = np.random.RandomState(3), 2000, 400
    covered = 0
    for _ in range(trials):
        a, b = random.binomial(n, 0.40) / n, random.binomial(n, 0.30) / n
        covered += (
            difference(a, _normal(a, n), b, _normal(b, n)).low
            < 0.10
            < difference(a, _normal(a, n), b, _normal(b, n)).high
        )
    assert 0.935 < covered / trials < 0.965


def test_a_difference_may_leave_out_zero_where_the_intervals_touch() -> None:
    a, b = Interval(low=0.36, high=0.44), Interval(low=0.29, high=0.37)
    assert difference(0.40, a, 0.33, b).excludes_zero()
    assert not difference(0.40, a, 0.36, Interval(low=0.32, high=0.40)).excludes_zero()


def _normal(rate: float, n: int) -> Interval:
    half = 1.96 * (rate * (1 - rate) / n) ** 0.5
    return Interval(low=rate - half, high=rate + half)


@pytest.mark.parametrize("end", [math.nan, math.inf, -math.inf])
def test_an_interval_has_finite_ends(end: float) -> None:
    assert Interval.of(end, 1.0) is None
    assert Interval.of(0.0, end) is None
    assert Interval.of(0.0, 1.0) == Interval(low=0.0, high=1.0)


def test_no_interval_where_one_cluster_has_more_than_half_of_the_weight() -> None:
    top, bottom = np.array([[30.0], [2.0], [1.0]]), np.array([[60.0], [5.0], [5.0]])
    for found in (intervals(ratio_of(top, bottom)), rate_intervals(ratio_of(top, bottom))):
        assert found == (None,)
    even = np.array([[5.0], [4.0], [6.0], [5.0], [3.0]]), np.full((5, 1), 10.0)
    for found in (intervals(ratio_of(*even)), rate_intervals(ratio_of(*even))):
        assert found is not None
        assert found[0] is not None, "five of equal weight have an interval"


def test_a_figure_without_weight_has_no_interval_and_others_keep_theirs() -> None:
    top = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [3.0, 0.0], [2.0, 0.0]])
    bottom = np.tile([[4.0, 0.0]], (5, 1))
    found = rate_intervals(ratio_of(top, bottom))
    assert found is not None
    assert found[0] is not None
    assert found[1] is None


def test_no_values_have_no_mean_and_no_interval() -> None:
    assert mean_interval(np.array([])) is None
    assert mean_interval(np.array([np.nan, 1.0])) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.floats(0, 1), st.integers(1, 2)), min_size=0, max_size=8
    )
)
def test_whatever_the_clusters_an_interval_is_finite_or_none(
    clusters: list[tuple[int, float, int]],
) -> None:
    bottom = np.array([[float(n * scale**8)] for n, _, scale in clusters]).reshape(-1, 1)
    top = bottom * np.array([[share] for _, share, _ in clusters]).reshape(-1, 1)
    ratio = ratio_of(top, bottom)
    for found in (intervals(ratio), rate_intervals(ratio)):
        for each in found or ():
            assert each is None or (math.isfinite(each.low) and each.low <= each.high)


def test_intervals_are_made_in_one_place() -> None:
    """Elsewhere only of constants: `Interval.of` is what refuses NaN."""
    root = Path(__file__).parents[4]
    sources = [*(root / "driftscope").rglob("*.py"), *(root / "reports").rglob("*.py")]
    made = [
        f"{path.name}: {call}"
        for path in sources
        if path.name != "interval.py"
        for call in re.findall(r"(?<!class )\bInterval\(([^)]*)\)", path.read_text("utf-8"))
        if not re.fullmatch(r"\s*low=[\d.]+, high=[\d.]+\s*", call)
    ]
    assert made == []


@pytest.mark.parametrize("requests", [1, 29, 30, 4000])
@pytest.mark.parametrize("bounds", [{}, {"above": 0.0}, {"below": 1.0}])
def test_without_an_interval_no_trust_is_high(requests: int, bounds: dict[str, float]) -> None:
    assert judged(requests, None, **bounds)[0] is Trust.LOW  # type: ignore[arg-type]
