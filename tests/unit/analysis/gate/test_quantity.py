"""Intervals through arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.analysis.gate.quantity import Quantity, Shared

numbers = st.floats(-1e3, 1e3)
widths = st.floats(0, 10)


@st.composite
def quantities(draw: st.DrawFn) -> Quantity:
    value = draw(numbers)
    return Quantity(value=value, low=value - draw(widths), high=value + draw(widths))


@given(quantities(), quantities())
def test_an_interval_holds_its_value(a: Quantity, b: Quantity) -> None:
    for found in (a + b, a - b, a * b, -a):
        assert found.low <= found.value + 1e-9
        assert found.value <= found.high + 1e-9


def test_rounding_in_logarithms_leaves_a_product_inside_its_interval() -> None:
    a = Quantity(value=914.2804288952059, low=914.2804288952059, high=915.2804288952059)
    b = Quantity(value=962.0457891339117, low=962.0457891339117, high=963.0457891339117)
    assert (a * b).low <= (a * b).value <= (a * b).high


@given(numbers, numbers)
def test_exact_numbers_stay_exact(a: float, b: float) -> None:
    x, y = Quantity.exact(a), Quantity.exact(b)
    assert (x + y).value == (x + y).low == (x + y).high == a + b
    assert (x * y).is_exact
    assert (x - y).is_exact


@given(quantities(), quantities())
def test_a_difference_is_wider_than_either_and_narrower_than_both(a: Quantity, b: Quantity) -> None:
    width = (a - b).high - (a - b).low
    each = [q.high - q.low for q in (a, b)]
    assert max(each) / 2 - 1e-6 <= width <= sum(each) + 1e-6


def test_a_ratio_of_positive_estimates_is_narrower_than_its_extremes() -> None:
    a, b = Quantity(value=2.0, low=1.9, high=2.1), Quantity(value=2.0, low=1.9, high=2.1)
    ratio = a / b
    assert ratio.value == 1.0
    assert 1.9 / 2.1 < ratio.low < ratio.high < 2.1 / 1.9
    assert ratio.high == pytest.approx(math.exp(math.hypot(math.log(1.05), math.log(2 / 1.9))))


def test_dividing_by_what_may_be_zero_says_nothing() -> None:
    ratio = Quantity.exact(1.0) / Quantity(value=0.1, low=-0.1, high=0.3)
    assert (ratio.low, ratio.high) == (-math.inf, math.inf)


def test_errors_in_common_drop_out_of_a_difference_and_a_ratio() -> None:
    def of(baseline: bool, correlation: float) -> Quantity:
        shared = Shared(figure="a", baseline=baseline, correlation=correlation)
        return Quantity(value=2.0, low=1.5, high=2.5, shared=shared)

    def width(quantity: Quantity) -> float:
        return quantity.high - quantity.low

    ours, theirs = of(False, 0.9), of(True, 0.9)
    alone = of(False, 0.0) - of(True, 0.0)
    assert width(ours - theirs) == pytest.approx(width(alone) * (1 - 0.9) ** 0.5)
    assert width(ours - Quantity.exact(2.0) * theirs) < width(alone)
    assert width(ours + theirs) > width(alone)
    assert width(ours / theirs) < width(of(False, 0.0) / of(True, 0.0))
    assert width(ours - ours) == pytest.approx(width(alone))
