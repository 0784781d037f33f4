"""The error of a ratio over clusters, and intervals with two finite ends."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.analysis.query.query_engine import Matrix
from driftscope.analysis.statistics.intervals import Interval, difference
from driftscope.analysis.statistics.ratio import (
    FEWEST_CLUSTERS,
    LEAST_SPANS,
    design_effect,
    intervals,
    nested,
    rate_intervals,
    ratio_of,
    ratio_over,
    spans_of,
)
from driftscope.findings.finding import Trust, judged


def test_the_error_is_that_of_leaving_each_request_out() -> None:
    random = np.random.RandomState(2)
    bottom = random.randint(1, 9, (20, 1)).astype(float)
    top = random.random_sample((20, 1)) * bottom
    found = ratio_of(top, bottom)
    left_out = (top.sum() - top) / (bottom.sum() - bottom)
    jackknife = np.sqrt(19 / 20 * np.square(left_out - found.value).sum())
    assert found.error[0] == pytest.approx(jackknife)


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
        covered += found[0].low <= rate <= found[0].high
    assert 0.925 <= covered / trials <= 0.975


@given(st.integers(0, 30), st.integers(FEWEST_CLUSTERS, 30))
def test_a_rate_stays_a_rate(accepted: int, requests: int) -> None:
    counts = np.arange(requests)[:, None] < accepted
    found = rate_intervals(ratio_of(counts.astype(float), np.ones((requests, 1))))
    value = counts.mean()
    assert 0 <= found[0].low <= value <= found[0].high <= 1
    assert found[0].low < found[0].high


def test_no_interval_where_one_cluster_has_more_than_half_of_the_weight() -> None:
    top, bottom = np.array([[30.0], [2.0], [1.0]]), np.array([[60.0], [5.0], [5.0]])
    for found in (intervals(ratio_of(top, bottom)), rate_intervals(ratio_of(top, bottom))):
        assert found == (None,)
    even = np.array([[5.0], [4.0], [6.0], [5.0], [3.0]]), np.full((5, 1), 10.0)
    for found in (intervals(ratio_of(*even)), rate_intervals(ratio_of(*even))):
        assert found[0] is not None, "five of equal weight have an interval"


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
        for interval in found or ():
            assert interval is None or (
                math.isfinite(interval.low) and interval.low <= interval.high
            )


RANDOM = np.random.RandomState(0)
VALUES = RANDOM.random_sample((60, 1))
ONES = np.ones((60, 1))
EACH = np.arange(60)


def test_copies_of_a_request_say_no_more_than_one() -> None:
    single = ratio_of(VALUES, ONES)
    copies = [np.repeat(values, 4, axis=0) for values in (VALUES, ONES)]
    clustered = ratio_over(ratio_of, copies, np.repeat(EACH, 4))
    assert clustered.value == pytest.approx(single.value)
    assert clustered.error == pytest.approx(single.error)
    assert clustered.df == pytest.approx(single.df)
    effect = design_effect(clustered, ratio_of(*copies))
    assert effect == pytest.approx(4.0, rel=0.02)


def test_balanced_kinds_in_every_cluster_make_the_design_effect_less_than_one() -> None:
    kinds = np.tile([[0.0], [10.0]], (30, 1)) + VALUES
    clustered = ratio_over(ratio_of, (kinds, ONES), EACH // 2)
    effect = design_effect(clustered, ratio_of(kinds, ONES))
    assert effect is not None and effect < 0.1


def test_crossed_clusters_count_both_variances() -> None:
    a, b = np.repeat(np.arange(20), 20), np.tile(np.arange(20), 20)
    effects = RANDOM.standard_normal((2, 20))
    values = (effects[0][a] + effects[1][b])[:, None]
    ones = np.ones_like(values)
    one, other = (ratio_over(ratio_of, (values, ones), sample) for sample in (a, b))
    both = ratio_over(ratio_of, (values, ones), a, b)
    assert both.error[0] > max(one.error[0], other.error[0])
    # no own noise: the variance of the mean is that of both means
    wanted = np.sqrt(effects[0].var(ddof=1) / 20 + effects[1].var(ddof=1) / 20)
    assert both.error[0] == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize(("clusters", "known"), [(4, False), (5, True), (12, True)])
def test_fewer_than_five_clusters_have_no_interval(clusters: int, known: bool) -> None:
    ratio = ratio_over(ratio_of, (VALUES, ONES), EACH % clusters)
    spread = intervals(ratio)
    assert (spread[0] is not None) == known
    if spread[0] is not None:
        assert spread[0].clusters == pytest.approx(clusters)


def test_nesting_is_seen() -> None:
    assert nested(EACH, EACH // 4)
    assert nested(EACH // 2, EACH // 4)
    assert not nested(EACH // 4, EACH // 2)
    assert not nested(EACH % 5, EACH // 5)


def test_what_both_runs_share_leaves_the_variance_of_their_difference() -> None:
    """Prompts are the same in both runs, sessions are not."""
    prompt, session = np.tile(np.arange(20), 15), np.repeat(np.arange(15), 20)
    easy, ones = RANDOM.standard_normal(20)[prompt], np.ones((300, 1))
    runs = [easy + 0.5 * RANDOM.standard_normal(15)[session] for _ in range(2)]
    a, b = (ratio_over(ratio_of, (run[:, None], ones), session, prompt) for run in runs)
    apart = b.minus(a)
    direct = ratio_over(ratio_of, ((runs[1] - runs[0])[:, None], ones), session, prompt)
    assert apart.error == pytest.approx(direct.error)
    assert apart.factor[0] == pytest.approx(1.0, abs=0.05)
    assert min(a.factor[0], b.factor[0]) > 1.2


def test_a_span_lasts_as_long_as_two_requests() -> None:
    spans = spans_of(np.arange(400.0), np.full(400, 20.0))
    assert spans.max() + 1 == 10


@pytest.mark.parametrize(
    ("arrival", "life"),
    [
        (np.arange(400.0), np.full(400, 200.0)),
        (np.zeros(400), np.ones(400)),
        (np.arange(4.0 * LEAST_SPANS - 1), np.full(4 * LEAST_SPANS - 1, 0.1)),
        (np.full(400, np.nan), np.ones(400)),
        (np.zeros(0), np.zeros(0)),
    ],
    ids=["all at once", "one moment", "few", "unknown", "none"],
)
def test_a_run_that_is_too_short_has_no_spans(arrival: Matrix, life: Matrix) -> None:
    assert spans_of(arrival, life) is None


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
    assert Interval.between(end, 1.0) is None
    assert Interval.between(0.0, end) is None
    assert Interval.between(0.0, 1.0) == Interval(low=0.0, high=1.0)


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
