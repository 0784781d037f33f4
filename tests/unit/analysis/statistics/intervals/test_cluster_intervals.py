"""Intervals of ratios over clusters: how often they hold the truth, and where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.analysis.statistics.clusters import mean_interval
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals, rate_intervals
from driftscope.analysis.statistics.intervals.cluster_ratio import FEWEST_CLUSTERS, ratio_of


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
