"""Measure how often `runs_part` distinguishes two drafters, and equal ones, on simulated runs.

Wanted: a drafter that is dead, dead from depth 2 or halved at depth 1 differs from a healthy one in
every pair of runs. Two runs of one drafter differ in at most 6.8 % of the pairs (5 %, and 1.64
standard errors of 400 pairs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from support.simulate import Truth
from support.simulate.sums import side

from driftscope.analysis.compare.run_comparison import Comparison, comparison
from driftscope.analysis.figures.side import BY_ID, UNPAIRED, Pairing

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
    rows = np.arange(len(first.labels) if paired else 0)
    how = Pairing(how=BY_ID if paired else UNPAIRED, first=rows, second=rows, alone=0)
    return comparison(first, second, ("healthy", "other"), how)
