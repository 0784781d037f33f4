"""A rule compares a run with its baseline: in pairs, or at one mix of labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulate import Prompts, Truth
from support.simulate.sums import side

from driftscope.analysis.compare.run_comparison import LENGTH, comparison
from driftscope.analysis.figures.measure import acceptance
from driftscope.analysis.figures.side import UNPAIRED, Pairing, Side
from driftscope.analysis.gate.baseline_relation import AT_MIX, Relation, at_one_mix
from driftscope.analysis.gate.evaluate import Facts
from driftscope.analysis.gate.judge import Judgement, Outcome, judge
from driftscope.analysis.gate.quantity import Quantity
from driftscope.analysis.gate.rule import rule_of

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


def _figures(run: Side) -> dict[str, object]:
    found = acceptance(run.rounds, spread=True)
    ends = found.mean_length_interval
    assert ends is not None
    spread = {"low": ends.low, "high": ends.high}
    return {"acceptance": {"mean_length": found.mean_length, "mean_length_interval": spread}}


def test_another_mix_of_labels_breaks_no_rule() -> None:
    baseline, run = _run(0.8, 1), _run(0.2, 2)
    assert _judged(LOSES, run, baseline, Relation()).outcome is Outcome.BROKEN
    at_mix = _judged(LOSES, run, baseline, at_one_mix(run, baseline))
    assert at_mix.outcome is Outcome.UNDECIDED
    assert f"acceptance.mean_length{AT_MIX} = " in at_mix.line()
    assert set(at_mix.values) == {
        f"acceptance.mean_length{AT_MIX}",
        f"baseline.acceptance.mean_length{AT_MIX}",
    }


def test_a_worse_drafter_that_serves_easier_labels_breaks_the_rule() -> None:
    baseline, run = _run(0.2, 1), _run(0.8, 2, shift=-0.9)
    assert _judged(LOSES, run, baseline, Relation()).outcome is not Outcome.BROKEN
    assert _judged(LOSES, run, baseline, at_one_mix(run, baseline)).outcome is Outcome.BROKEN


def test_a_rule_without_the_baseline_takes_figures_as_served() -> None:
    baseline, run = _run(0.8, 1), _run(0.2, 2)
    length = acceptance(run.rounds).mean_length
    asked = _judged("acceptance.mean_length < 1.01", run, baseline, at_one_mix(run, baseline))
    figure = asked.values["acceptance.mean_length"]
    assert isinstance(figure, Quantity)
    assert figure.value == length


def test_figures_at_the_mix_are_those_of_compare() -> None:
    baseline, run = _run(0.8, 1), _run(0.2, 2)
    found = at_one_mix(run, baseline)
    none = np.empty(0, dtype=np.int64)
    pairing = Pairing(how=UNPAIRED, first=none, second=none, alone=0)
    (length,) = comparison(baseline, run, ("a", "b"), pairing).at(LENGTH)
    ours = found.at_mix("acceptance.mean_length", baseline=False)
    theirs = found.at_mix("acceptance.mean_length", baseline=True)
    assert ours is not None and theirs is not None
    assert length.interval is not None
    apart = ours - theirs
    assert apart.value == pytest.approx(length.difference)
    assert (apart.low, apart.high) == pytest.approx(
        (length.interval.low, length.interval.high), abs=0.02
    )
    assert found.run["acceptance.marginal[-1]"] == found.run["acceptance.marginal[3]"]
    assert sum(found.mix.values()) == pytest.approx(1.0)


def test_runs_of_one_mix_are_compared_as_served() -> None:
    assert at_one_mix(_run(0.5, 1), _run(0.5, 1)) == Relation()
