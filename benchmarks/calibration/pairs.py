"""Comparisons and gates: two runs of one truth, of two drafters, and of other mixes of labels.

Wanted: two runs of one drafter differ in at most 6.8 % of the pairs (5 %, and 1.64 standard errors
of 400 pairs), also where they serve other shares of two labels; a drafter that is dead, halved or
worse on both labels is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from support.simulate import Prompts, Truth
from support.simulate.sums import side

from benchmarks.calibration.estimates import RUNS, run_of
from benchmarks.calibration.table import Figures, Rate, Table, false, mean_of, power
from driftscope.analysis.baseline_relation import relation_of
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
World = tuple[Truth, bool]
"""Truth of two runs, and whether they are of the same prompts."""
TWICE: dict[str, World] = {
    f"{name}, {'paired' if paired else 'unpaired'}": (truth, paired)
    for name, truth in RUNS.items()
    for paired in (False, True)
}


def twice(world: World, trial: int) -> tuple[Side, Side]:
    """Return two runs of the same truth."""
    truth, paired = world
    return (
        run_of(truth, 2 * trial),
        run_of(truth, 2 * trial + 1, prompts=2 * trial if paired else None),
    )


def false_calls(world: World, trial: int) -> Figures:
    """Return whether two runs of one truth are called different."""
    first, second = twice(world, trial)
    found = comparison(first, second, ("a", "b"), _pairing(first, paired=world[1]))
    return {"called": any(row.differs for row in found.differences)}


def false_gates(world: World, trial: int) -> Figures:
    """Return whether a run fails the gate whose baseline is another run of its truth."""
    baseline, run = twice(world, trial)
    return {"called": _breaks(RULES, baseline, run, paired=world[1])}


def _breaks(rules: Sequence[str], baseline: Side, run: Side, *, paired: bool) -> bool:
    """Return whether a run breaks a rule."""
    compared = comparison(baseline, run, ("baseline", "run"), _pairing(run, paired=paired))
    facts = Facts(
        run=figures_of(run),
        baseline=figures_of(baseline),
        has_finding=lambda _: None,
        relation=relation_of([compared], NO_DIFFERENCE),
    )
    judged = judge([rule_of(text) for text in rules], [("run", facts)])
    return any(row.outcome is Outcome.BROKEN for row in judged)


def _pairing(first: Side, *, paired: bool) -> Pairing:
    rows = np.arange(len(first.labels) if paired else 0)
    return Pairing(how=BY_DIGEST if paired else UNPAIRED, first=rows, second=rows, alone=0)


def figures_of(run: Side) -> dict[str, Any]:
    """Return the figures in the form of the JSON report."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(acceptance_of(run.rounds, spread=True))))
    return {"acceptance": found}


def _called(_: World, row: Figures, trials: int) -> Iterator[Rate]:
    yield false("called", row["called"], trials)


FALSE_CALLS = Table(
    name="false_calls",
    title="Two runs of the same truth, {trials} comparisons: share with any difference",
    worlds=TWICE,
    figures=mean_of(false_calls),
    rates=_called,
)
GATE_FAILURES = Table(
    name="gate",
    title="Two runs of the same truth, {trials} gates: share that fails",
    worlds=TWICE,
    figures=mean_of(false_gates),
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


def parted(world: tuple[Truth, str, bool], trials: int) -> Figures:
    """Return the share of the pairs of runs that differ, the mean first depth that does, and the
    mean of the largest difference that is compatible with the pairs that do not differ."""
    truth, name, paired = world
    other = replace(truth, conditional=conditional_in(truth, name))

    def trial(_: object, seed: int) -> Figures:
        found = _compared(truth, other, seed, paired=paired)
        first = found.parts_from
        bound = found.bound if first is None else None
        return {"parted": first is not None, "first": first, "bound": bound}

    return mean_of(trial)(world, trials if other == truth else min(trials, MOST_BROKEN))


def _parted(world: tuple[Truth, str, bool], row: Figures, trials: int) -> Iterator[Rate]:
    if WORLDS[world[1]]:
        yield power("parted", row["parted"], min(trials, MOST_BROKEN))
    else:
        yield false("parted", row["parted"], trials)


PARTING = Table(
    name="parting",
    title="Two drafters: share of pairs that part",
    worlds={
        f"{run}, {world}, {'paired' if paired else 'unpaired'}": (truth, world, paired)
        for run, truth in RUNS.items()
        for world in WORLDS
        for paired in (True, False)
    },
    figures=parted,
    rates=_parted,
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


def other_mixes(mix: tuple[float, float], trial: int) -> Figures:
    """Return whether two runs of one drafter are called different, with and without a common mix of
    labels, and break GATE; and whether a worse one, which serves more of the easy label, does."""
    first, second = mix
    a, b = _run(2 * trial, first), _run(2 * trial + 1, second)
    worse = _run(2 * trial + 1, second, WORSE)
    return {
        "called": _differs(a, b),
        "as_served": _differs(_unlabelled(a), _unlabelled(b)),
        "found": _differs(a, worse),
        "gate": _breaks([GATE], a, b, paired=False),
        "gate_found": _breaks([GATE], a, worse, paired=False),
    }


def _run(seed: int, easy: float, shift: float = 0.0) -> Side:
    kinds = (
        Prompts(label="easy", share=easy, shift=EASY + shift),
        Prompts(label="hard", share=1 - easy, shift=HARD + shift),
    )
    return side(replace(TRUTH, prompts=kinds, seed=seed, prompts_seed=100_000 + seed))


def _unlabelled(run: Side) -> Side:
    return replace(run, labels=("",) * len(run.labels))


def _differs(a: Side, b: Side) -> bool:
    found = comparison(a, b, ("a", "b"), _pairing(a, paired=False))
    return any(row.differs for row in found.differences)


def _mixes(_: tuple[float, float], row: Figures, trials: int) -> Iterator[Rate]:
    yield false("another mix called a difference", row["called"], trials)
    yield false("gate broken by another mix", row["gate"], trials)
    yield power("worse drafter found", row["found"], trials)
    yield power("worse drafter breaks the gate", row["gate_found"], trials)


LABEL_MIX = Table(
    name="label_mix",
    title="Two runs with other mixes of two labels, {trials} pairs each: share called different",
    worlds=MIXES,
    figures=mean_of(other_mixes),
    rates=_mixes,
)
