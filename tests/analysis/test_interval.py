"""Resampling requests."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from driftscope.analysis.interval import Interval, difference, per_request, ratio_intervals


def test_alike_rounds_within_a_request_do_not_narrow_the_interval() -> None:
    """Ten copies of each round say no more than one: a bootstrap over rounds would think so."""
    random = np.random.RandomState(0)
    per = random.random_sample((40, 1))
    single = ratio_intervals(per, np.ones((40, 1)))
    copied = ratio_intervals(10 * per, np.full((40, 1), 10.0))
    assert single is not None and copied is not None
    assert np.isclose(single[0].low, copied[0].low)
    assert np.isclose(single[0].high, copied[0].high)


def test_covers_the_truth_about_95_times_in_100() -> None:
    """300 simulated runs of 60 requests that differ in how easy they are."""
    random = np.random.RandomState(1)
    covered = 0
    for _ in range(300):
        ease = random.beta(4, 4, size=60)
        accepted = random.binomial(20, ease)[:, None].astype(float)
        found = ratio_intervals(accepted, np.full((60, 1), 20.0))
        assert found is not None
        covered += found[0].low <= 0.5 <= found[0].high
    assert 0.91 <= covered / 300 <= 0.98


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=60))
def test_sums_by_request(pairs: list[tuple[int, int]]) -> None:
    request = np.array([r for r, _ in pairs])
    values = np.array([[float(v)] for _, v in pairs])
    expected = [sum(v for r, v in pairs if r == name) for name in sorted(set(request.tolist()))]
    assert per_request(request, values)[:, 0].tolist() == expected


def test_one_request_cannot_be_resampled() -> None:
    assert ratio_intervals(np.ones((1, 1)), np.ones((1, 1))) is None


def test_many_requests_are_grouped_and_keep_their_total() -> None:
    random = np.random.RandomState(2)
    values = random.random_sample((5000, 1))
    found = ratio_intervals(values, np.ones((5000, 1)))
    assert found is not None
    assert found[0].low < values.mean() < found[0].high
    assert found[0].high - found[0].low < 0.03


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
