"""Ways of losing acceptance, by the depth at which it is lost; each way has causes of its own."""

from __future__ import annotations

from enum import StrEnum

from driftscope.analysis.compare.run_comparison import MARGINAL, Comparison, accepts_less
from driftscope.analysis.findings.dead_drafter import NOTHING_BELOW
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.run_summary import RunSummary

LOW_BELOW = 0.3
"""Marginal rate at depth 1; half of the weakest published rate."""
FALLS_BELOW = 0.4
"""Conditional rate at a depth over that at depth 1. Published vectors of live depths keep 0.8 or
more; a drafter with norm_output whose flag is not applied keeps 0.27 at depth 2. Between the two no
loss is reported."""
STOPS_BELOW = 0.05
"""Conditional rate at a depth that no chain gets beyond; the published dead tail has 0 there."""


class Loss(StrEnum):
    """Way in which acceptance is lost."""

    NOTHING = "nothing is accepted, from the first depth on"
    LOW = "acceptance is low from the first depth on"
    FALLS = "acceptance is right at the first depth, and falls faster than a healthy drafter's"
    STOPS = "acceptance ends at a depth"


def loss_of(run: RunSummary) -> Loss | None:
    """Return how a run loses acceptance, judged by itself; None if it does so in none of these
    ways."""
    first, spread = run.acceptance.marginal[0], run.acceptance.marginal_interval
    if first < NOTHING_BELOW:
        return Loss.NOTHING
    if spread is not None and spread[0] is not None and spread[0].high < LOW_BELOW:
        return Loss.LOW
    at = steepest(run)
    if at is None:
        return None
    rate = run.acceptance.conditional[at - 1]
    return Loss.STOPS if rate is not None and rate < STOPS_BELOW else Loss.FALLS


def steepest(run: RunSummary) -> int | None:
    """Return the first depth whose conditional rate is surely below FALLS_BELOW times that at depth
    1; None if there is none."""
    bound = FALLS_BELOW * run.acceptance.marginal[0]
    for depth in range(2, run.k + 1):
        spread = conditional_interval(run, depth)
        if spread is not None and spread.high < bound:
            return depth
    return None


def conditional_interval(run: RunSummary, depth: int) -> Interval | None:
    """Return the 95% interval of the conditional rate at a depth."""
    spread = run.spread.get("conditional", ())
    return spread[depth - 1] if len(spread) >= depth else None


def loss_against(comparison: Comparison | None, run: RunSummary) -> Loss | None:
    """Return how a run loses acceptance compared with a better one; None if it does not accept
    less."""
    if comparison is None or not accepts_less(comparison):
        return None
    if run.acceptance.marginal[0] < NOTHING_BELOW:
        return Loss.NOTHING
    lower = [d.depth for d in comparison.at(MARGINAL) if d.differs and d.difference < 0 and d.depth]
    if not lower or lower[0] == 1:
        return Loss.LOW
    rate = run.acceptance.conditional[lower[0] - 1]
    return Loss.STOPS if rate is not None and rate < STOPS_BELOW else Loss.FALLS
