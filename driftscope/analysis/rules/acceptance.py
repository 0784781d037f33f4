"""Depths that are not worth drafting."""

from __future__ import annotations

from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import percent

DEAD_BELOW = 0.02
"""Marginal rate: fewer than 1 round in 50 gets that far. Of the published vectors that driftscope
reproduces, the live ones end at 0.042 or above and the dead tail is at 0."""


def first_dead_depth(run: RunSummary) -> int | None:
    """The first depth whose marginal rate is below the floor."""
    rates = enumerate(run.acceptance.marginal, start=1)
    return next((depth for depth, rate in rates if rate < DEAD_BELOW), None)


def acceptance_dies(run: RunSummary) -> Finding | None:
    """From some depth on, practically nothing is accepted."""
    dead = first_dead_depth(run)
    if dead is None:
        return None
    rates = run.acceptance.marginal
    return Finding(
        id="acceptance_dies",
        severity=Severity.HIGH if dead == 1 else Severity.MEDIUM,
        runs=(run.label,),
        title="Acceptance is dead beyond a depth",
        statement=f"only {percent(rates[dead - 1])} of the rounds are accepted to depth {dead}"
        + (f" (depth 1: {percent(rates[0])})" if dead > 1 else ""),
        evidence={
            "dead_depth": dead,
            "marginal": rates[dead - 1],
            "marginal_first": rates[0],
            "threshold": DEAD_BELOW,
        },
        advice=_NOTHING_ACCEPTED
        if dead == 1
        else f"Tokens drafted from depth {dead} on are thrown away: set num_speculative_tokens to "
        f"{dead - 1} or less.",
    )


_NOTHING_ACCEPTED = (
    "A drafter that fails at depth 1 is misconfigured more often than bad: check the norm flags "
    "and the auxiliary layers in the run's provenance against the drafter's training, that target "
    "and drafter belong together, and that the target is not quantised differently."
)
