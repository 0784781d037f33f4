"""Intervals through arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulate import Prompts, Truth
from support.simulate.sums import side, unpaired

from driftscope.analysis.baseline_relation import AT_MIX, Quantity, Relation, Shared, relation_of
from driftscope.analysis.comparability import NO_DIFFERENCE
from driftscope.analysis.compare import LENGTH
from driftscope.analysis.figures.results import acceptance_of
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.gate import Facts, Judgement, Outcome, judge, rule_of

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


LOSES = "acceptance.mean_length < baseline.acceptance.mean_length"


def _run(easy: float, seed: int, shift: float = 0.0) -> Side:
    kinds = (
        Prompts(label="easy", share=easy, shift=0.8 + shift),
        Prompts(label="hard", share=1 - easy, shift=-0.8 + shift),
    )
    return side(Truth(requests=120, rounds=15, k=4, prompts=kinds, seed=seed, prompts_seed=seed))


def _judged(rule: str, run: Side, baseline: Side, relation: Relation) -> Judgement:
    facts = Facts(run=_figures(run), baseline=_figures(baseline), has_finding=lambda _: None)
    return judge([rule_of(rule)], [("run", replace(facts, relation=relation))])[0]


def _related(run: Side, baseline: Side) -> Relation:
    return relation_of([unpaired(baseline, run)], NO_DIFFERENCE)


def _figures(run: Side) -> dict[str, object]:
    found = acceptance_of(run.rounds, spread=True)
    ends = found.mean_length_interval
    assert ends is not None
    spread = {"low": ends.low, "high": ends.high}
    return {"acceptance": {"mean_length": found.mean_length, "mean_length_interval": spread}}


def test_another_mix_of_labels_breaks_no_rule() -> None:
    baseline, run = _run(0.8, 1), _run(0.2, 2)
    assert _judged(LOSES, run, baseline, Relation()).outcome is Outcome.BROKEN
    at_mix = _judged(LOSES, run, baseline, _related(run, baseline))
    assert at_mix.outcome is Outcome.UNDECIDED
    assert f"acceptance.mean_length{AT_MIX} = " in at_mix.line()
    assert set(at_mix.values) == {
        f"acceptance.mean_length{AT_MIX}",
        f"baseline.acceptance.mean_length{AT_MIX}",
    }


def test_a_worse_drafter_that_serves_easier_labels_breaks_the_rule() -> None:
    baseline, run = _run(0.2, 1), _run(0.8, 2, shift=-0.9)
    assert _judged(LOSES, run, baseline, Relation()).outcome is not Outcome.BROKEN
    assert _judged(LOSES, run, baseline, _related(run, baseline)).outcome is Outcome.BROKEN


def test_a_rule_without_the_baseline_takes_figures_as_served() -> None:
    baseline, run = _run(0.8, 1), _run(0.2, 2)
    length = acceptance_of(run.rounds).mean_length
    asked = _judged("acceptance.mean_length < 1.01", run, baseline, _related(run, baseline))
    figure = asked.values["acceptance.mean_length"]
    assert isinstance(figure, Quantity)
    assert figure.value == length


def test_figures_at_the_mix_are_those_of_compare() -> None:
    baseline, run = _run(0.8, 1), _run(0.2, 2)
    found = _related(run, baseline)
    (length,) = unpaired(baseline, run).at(LENGTH)
    ours = found.compared("acceptance.mean_length", baseline=False)
    theirs = found.compared("acceptance.mean_length", baseline=True)
    assert ours is not None and theirs is not None
    assert length.interval is not None
    apart = ours - theirs
    assert apart.value == pytest.approx(length.difference)
    assert (apart.low, apart.high) == pytest.approx((length.interval.low, length.interval.high))
    assert found.run["acceptance.marginal[-1]"] == found.run["acceptance.marginal[3]"]


def test_runs_of_one_mix_are_compared_as_served() -> None:
    run = _run(0.5, 1)
    assert set(_related(run, run).basis.values()) == {""}
