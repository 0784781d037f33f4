"""Comparisons and gates: two runs of one truth, of two drafters, and of other mixes of labels.

Wanted: two runs of one drafter differ in at most 6.8 % of the pairs (5 %, and 1.64 standard errors
of 400 pairs), also where they serve other shares of two labels; a drafter that is dead, halved or
worse on both labels is found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from support.simulate import Prompts, Truth
from support.simulate.sums import side

from benchmarks.calibration.estimates import RUNS, run_of
from benchmarks.calibration.table import Rate, Table, false, power
from driftscope.analysis.baseline_relation import Relation, relation_of
from driftscope.analysis.comparability import NO_DIFFERENCE
from driftscope.analysis.compare import Comparison, comparison
from driftscope.analysis.figures.results import acceptance_of
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.gate import Facts, Outcome, judge, rule_of
from driftscope.analysis.pairing import BY_DIGEST, UNPAIRED, Pairing

RULES = (
    "acceptance.mean_length < baseline.acceptance.mean_length",
    "acceptance.marginal[-1] < baseline.acceptance.marginal[-1]",
)
PAIRED = {False: "unpaired", True: "paired"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """False-positive rate: how often chance alone was reported, or failed the gate."""

    run: str
    pairing: str
    called: float
    """Share of the pairs of runs in which a difference was reported."""


def twice(truth: Truth, trials: int, *, paired: bool) -> Iterator[tuple[Side, Side]]:
    """Yield two runs of the same truth; `paired`: of the same prompts as well."""
    for trial in range(trials):
        yield (
            run_of(truth, 2 * trial),
            run_of(truth, 2 * trial + 1, prompts=2 * trial if paired else None),
        )


def false_calls(name: str, truth: Truth, trials: int, *, paired: bool) -> Calls:
    """Return how often two runs of one truth are called different."""
    called = 0
    for first, second in twice(truth, trials, paired=paired):
        found = comparison(first, second, ("a", "b"), _pairing(first, paired=paired))
        called += any(row.differs for row in found.differences)
    return Calls(run=name, pairing=PAIRED[paired], called=called / trials)


def false_gates(name: str, truth: Truth, trials: int, *, paired: bool) -> Calls:
    """Return how often a run fails the gate whose baseline is another run of its truth."""
    rules, failed = [rule_of(text) for text in RULES], 0
    for baseline, run in twice(truth, trials, paired=paired):
        facts = Facts(
            run=figures_of(run),
            baseline=figures_of(baseline),
            has_finding=lambda _: None,
            relation=_relation(baseline, run, paired=paired),
        )
        failed += any(row.outcome is Outcome.BROKEN for row in judge(rules, [(name, facts)]))
    return Calls(run=name, pairing=PAIRED[paired], called=failed / trials)


def _pairing(first: Side, *, paired: bool) -> Pairing:
    rows = np.arange(len(first.labels) if paired else 0)
    return Pairing(how=BY_DIGEST if paired else UNPAIRED, first=rows, second=rows, alone=0)


def _relation(baseline: Side, run: Side, *, paired: bool) -> Relation:
    compared = comparison(baseline, run, ("baseline", "run"), _pairing(run, paired=paired))
    return relation_of([compared], NO_DIFFERENCE)


def figures_of(run: Side) -> dict[str, Any]:
    """Return the figures in the form of the JSON report."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(acceptance_of(run.rounds, spread=True))))
    return {"acceptance": found}


def _calls(count: Callable[..., Calls]) -> Callable[[int], Iterator[Calls]]:
    def rows(trials: int) -> Iterator[Calls]:
        for name, truth in RUNS.items():
            for paired in (False, True):
                yield count(name, truth, trials, paired=paired)

    return rows


def _called(row: Calls, trials: int) -> Iterator[Rate]:
    yield false("called", row.called, trials)


FALSE_CALLS = Table(
    name="false_calls",
    title="Two runs of the same truth, {trials} comparisons: share with any difference",
    rows=_calls(false_calls),
    rates=_called,
)
GATE_FAILURES = Table(
    name="gate",
    title="Two runs of the same truth, {trials} gates: share that fails",
    rows=_calls(false_gates),
    rates=_called,
)


NEVER = 1e-9
FIRST = Truth().conditional[0]
WORLDS: dict[str, tuple[float, ...]] = {
    "equal": (),
    "dead": (NEVER,),
    "dead from depth 2": (FIRST, NEVER),
    "halved at depth 1": (FIRST / 2,),
}
"""Conditional acceptance of the second drafter at its first depths. Deeper rates are those of the
first drafter, or NEVER after a depth at which it is NEVER."""
MOST_BROKEN = 20
"""Number of pairs with a broken drafter: the difference must be found in all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """Result for one world: the frequency with which its drafters are found to differ."""

    run: str
    world: str
    pairing: str
    pairs: int
    parted: float
    """Share of the pairs that differ."""
    first: float | None
    """Mean of the first depth that differs; None if none does."""
    bound: float | None
    """Median of the largest difference that is compatible with the pairs that do not differ."""


def parted(name: str, truth: Truth, world: str, trials: int, *, paired: bool) -> Parted:
    """Return the result for one world; `truth` is the healthy drafter's."""
    other = replace(truth, conditional=conditional_in(truth, world))
    pairs = trials if other == truth else min(trials, MOST_BROKEN)
    found = [_compared(truth, other, trial, paired=paired) for trial in range(pairs)]
    first = [each.parts_from for each in found if each.parts_from is not None]
    bounds = [each.bound for each in found if each.parts_from is None and each.bound is not None]
    return Parted(
        run=name,
        world=world,
        pairing="paired" if paired else "unpaired",
        pairs=pairs,
        parted=len(first) / pairs,
        first=float(np.mean(first)) if first else None,
        bound=float(np.median(bounds)) if bounds else None,
    )


def conditional_in(truth: Truth, world: str) -> tuple[float, ...]:
    """Return the second drafter's conditional acceptance."""
    rates = WORLDS[world]
    dead = NEVER in rates
    return (*rates, *((NEVER,) * truth.k if dead else truth.conditional[len(rates) :]))[: truth.k]


def _compared(truth: Truth, other: Truth, trial: int, *, paired: bool) -> Comparison:
    seeds, prompts = 10_000 + 2 * trial, 50_000 + 2 * trial
    first = side(replace(truth, seed=seeds, prompts_seed=prompts))
    second = side(replace(other, seed=seeds + 1, prompts_seed=prompts + (not paired)))
    return comparison(first, second, ("healthy", "other"), _pairing(first, paired=paired))


def parted_runs(trials: int) -> Iterator[Parted]:
    """Yield the result of every world for each run."""
    for name, truth in RUNS.items():
        for world in WORLDS:
            for paired in (True, False):
                yield parted(name, truth, world, trials, paired=paired)


PARTING = Table(
    name="parting",
    title="Two drafters: share of pairs that part (equal ones: at most 6.8 % wanted)",
    rows=parted_runs,
    formats={"first": ".1f"},
)


EASY, HARD = 0.6, -0.6
"""Logit shifts of the two labels."""
WORSE = -0.5
"""Logit shift of a worse drafter."""
MIXES = {"50 % and 50 %": (0.5, 0.5), "35 % and 65 %": (0.35, 0.65), "10 % and 90 %": (0.1, 0.9)}
"""Share of the easy label in each of two runs."""
GATE = "acceptance.mean_length < baseline.acceptance.mean_length"
"""Rule that a run breaks if it accepts less than its baseline, surely."""
TRUTH = Truth(requests=200, rounds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMix:
    """Shares of the pairs of runs that are called different."""

    mix: str
    called: float
    """Share of the pairs of one drafter."""
    as_served: float
    """Share of the pairs of one drafter, without a common mix of labels."""
    found: float
    """Share of the pairs of a drafter and a worse one, which serves more of the easy label."""
    gate: float
    """Share of the pairs of one drafter that break GATE."""
    gate_found: float
    """Share of the pairs of a drafter and a worse one that break it."""


def other_mixes(trials: int) -> Iterator[OtherMix]:
    """Yield the rates of every mix."""
    for name, (first, second) in MIXES.items():
        equal = [(_run(2 * t, first), _run(2 * t + 1, second)) for t in range(trials)]
        worse = [(a, _run(2 * t + 1, second, WORSE)) for t, (a, _) in enumerate(equal)]
        yield OtherMix(
            mix=name,
            called=_share(equal),
            as_served=_share([(_unlabelled(a), _unlabelled(b)) for a, b in equal]),
            found=_share(worse),
            gate=_broken(equal),
            gate_found=_broken(worse),
        )


def _run(seed: int, easy: float, shift: float = 0.0) -> Side:
    kinds = (
        Prompts(label="easy", share=easy, shift=EASY + shift),
        Prompts(label="hard", share=1 - easy, shift=HARD + shift),
    )
    return side(replace(TRUTH, prompts=kinds, seed=seed, prompts_seed=100_000 + seed))


def _unlabelled(run: Side) -> Side:
    return replace(run, labels=("",) * len(run.labels))


def _share(pairs: list[tuple[Side, Side]]) -> float:
    found = [comparison(a, b, ("a", "b"), _pairing(a, paired=False)) for a, b in pairs]
    return sum(any(each.differs for each in one.differences) for one in found) / len(found)


def _broken(pairs: list[tuple[Side, Side]]) -> float:
    """Return the share of the pairs whose second run breaks GATE with the first as baseline."""
    rule, broken = rule_of(GATE), 0
    for baseline, run in pairs:
        facts = Facts(
            run=_figures(run),
            baseline=_figures(baseline),
            has_finding=lambda _: None,
            relation=_relation(baseline, run, paired=False),
        )
        broken += judge([rule], [("run", facts)])[0].outcome is Outcome.BROKEN
    return broken / len(pairs)


def _figures(run: Side) -> dict[str, Any]:
    """Return the acceptance length in the form of the JSON report."""
    found = acceptance_of(run.rounds, spread=True)
    ends = found.mean_length_interval
    spread = None if ends is None else {"low": ends.low, "high": ends.high}
    length = {"mean_length": found.mean_length, "mean_length_interval": spread}
    return {"acceptance": length}


def _mixes(row: OtherMix, trials: int) -> Iterator[Rate]:
    yield false("another mix called a difference", row.called, trials)
    yield false("gate broken by another mix", row.gate, trials)
    yield power("worse drafter found", row.found, trials)
    yield power("worse drafter breaks the gate", row.gate_found, trials)


LABEL_MIX = Table(
    name="label_mix",
    title="Two runs with other mixes of two labels, {trials} pairs each: share called different",
    rows=other_mixes,
    rates=_mixes,
)
