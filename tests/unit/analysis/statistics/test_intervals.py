"""Intervals have two finite ends, and so have those of differences."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri

from driftscope.analysis.closeup import AT
from driftscope.analysis.statistics.intervals import Interval, difference, quantile_interval
from driftscope.findings.finding import Trust, judged


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


def _normal(rate: float, n: int) -> Interval:
    half = 1.96 * (rate * (1 - rate) / n) ** 0.5
    return Interval(low=rate - half, high=rate + half)


@pytest.mark.parametrize("end", [math.nan, math.inf, -math.inf])
def test_an_interval_has_finite_ends(end: float) -> None:
    assert Interval.of(end, 1.0) is None
    assert Interval.of(0.0, end) is None
    assert Interval.of(0.0, 1.0) == Interval(low=0.0, high=1.0)


def test_intervals_are_made_in_one_place() -> None:
    """Outside the room only of constants: `Interval.of` is what refuses NaN."""
    root = Path(__file__).parents[4]
    sources = [*(root / "driftscope").rglob("*.py"), *(root / "reports").rglob("*.py")]
    made = [
        f"{path.name}: {call}"
        for path in sources
        if path.name != "intervals.py"
        for call in re.findall(r"(?<!class )\bInterval\(([^)]*)\)", path.read_text("utf-8"))
        if not re.fullmatch(r"\s*low=[\d.]+, high=[\d.]+\s*", call)
    ]
    assert made == []


@pytest.mark.parametrize("requests", [1, 29, 30, 4000])
@pytest.mark.parametrize("bounds", [{}, {"above": 0.0}, {"below": 1.0}])
def test_without_an_interval_no_trust_is_high(requests: int, bounds: dict[str, float]) -> None:
    assert judged(requests, None, **bounds)[0] is Trust.LOW  # type: ignore[arg-type]


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
