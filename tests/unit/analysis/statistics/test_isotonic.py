"""Weighted isotonic regression."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.analysis.statistics.isotonic import isotonic

VALUES = st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 10)), min_size=1, max_size=12)


def test_neighbours_in_the_wrong_order_take_their_weighted_mean() -> None:
    assert isotonic([1.0, 4.0, 2.0, 5.0], [1.0, 1.0, 3.0, 1.0]) == [1.0, 2.5, 2.5, 5.0]


@given(VALUES)
def test_it_never_falls_and_keeps_the_weighted_mean(pairs: list[tuple[float, float]]) -> None:
    values, weights = zip(*pairs, strict=True)
    found = isotonic(values, weights)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(found))
    mean = sum(v * w for v, w in pairs)
    assert sum(f * w for f, w in zip(found, weights, strict=True)) == pytest.approx(mean, abs=1e-6)


def test_it_is_that_of_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize", minversion=None)
    if not hasattr(optimize, "isotonic_regression"):
        pytest.skip("scipy before 1.12")
    values, weights = [3.0, 1.0, 2.0, 5.0, 4.0, 4.5], [1.0, 2.0, 0.5, 1.0, 3.0, 1.0]
    other = optimize.isotonic_regression(values, weights=weights).x
    assert isotonic(values, weights) == pytest.approx(other.tolist())
