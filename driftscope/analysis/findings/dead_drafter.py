"""Test for a dead drafter: one of which practically no round accepts anything."""

from __future__ import annotations

from driftscope.analysis.findings.finding import Trust
from driftscope.analysis.number_words import count, percent
from driftscope.analysis.statistics.intervals.independent_cases import exact_interval
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.run_summary import RunSummary

NOTHING_BELOW = 0.05
"""Marginal rate at depth 1. The weakest of the published vectors of marginal rates has 0.585 there;
a drafter that one mode of execution broke had 0 (vllm#54997)."""
SURE_ROUNDS = 300
"""Smallest number of rounds for which a drafter is surely dead. After 59 independent rounds without
an accepted token the rate is below NOTHING_BELOW; 300 rounds are worth at least as many if rounds
of one request are so similar that four or five count as one."""
SURE_REQUESTS = 5
"""Smallest number of independent requests, those of different prompts or sessions, for which a
drafter is surely dead: fewer prompts may all be unusual."""


def accepted_once(run: RunSummary) -> int:
    """Return the number of rounds that accepted a token."""
    return sum(run.acceptance.histogram[1:])


def rate_interval(run: RunSummary) -> Interval:
    """Return the 95% interval of the marginal rate at depth 1: exact over rounds and, if anything
    was accepted, no narrower than over requests."""
    exact, spread = exact_interval(accepted_once(run), run.rounds), run.acceptance.marginal_interval
    over_requests = spread[0] if spread else None
    if not accepted_once(run) or over_requests is None:
        return exact
    return exact.hull(over_requests)


def judge(run: RunSummary) -> tuple[Trust, str]:
    """Return how certain it is that the rate at depth 1 is below NOTHING_BELOW, and why."""
    high, seen = rate_interval(run).high, f"{count(run.rounds, 'round')} of "
    seen += count(run.requests, "request")
    if not high < NOTHING_BELOW:
        return Trust.LOW, f"{seen} leave a rate of up to {percent(high)}"
    if run.rounds < SURE_ROUNDS:
        return Trust.MEDIUM, f"{seen}: certain only from {SURE_ROUNDS} rounds on"
    if run.clusters < SURE_REQUESTS:
        least = f"{SURE_REQUESTS} {run.noun}s"
        return Trust.MEDIUM, f"{seen}: certain only from {least} on"
    return Trust.HIGH, f"{seen} leave a rate below {percent(high)} (95 %, exact)"


def is_dead(run: RunSummary) -> bool:
    """Whether the drafter is surely dead."""
    return run.acceptance.marginal[0] < NOTHING_BELOW and judge(run)[0] is Trust.HIGH


def none_accepted(run: RunSummary) -> str:
    """Return in words how many rounds accept anything."""
    some, high = accepted_once(run), percent(rate_interval(run).high)
    if not some:
        return f"none of {count(run.rounds, 'round')} accepts a token: the rate is below {high}"
    return (
        f"{some:,} of {count(run.rounds, 'round')} accept{'s' if some == 1 else ''} a token: the "
        f"rate is below {high}"
    )
