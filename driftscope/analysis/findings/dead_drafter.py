"""Is the drafter dead: does practically no round accept anything?"""

from __future__ import annotations

from driftscope.analysis.findings.finding import Trust
from driftscope.analysis.number_words import count, percent
from driftscope.analysis.statistics.interval import Interval, exact_interval
from driftscope.analysis.summary.run_summary import RunSummary

NOTHING_BELOW = 0.05
"""Marginal rate at depth 1. The weakest of the published vectors of marginal rates is at 0.585
there; a drafter that one mode of execution broke was at 0 (vllm#54997)."""
SURE_ROUNDS = 300
"""Rounds from which a drafter is called dead for sure. Of 59 independent rounds without an accepted
token the rate is below NOTHING_BELOW; 300 are as many, and more, where rounds of one request are so
alike that four or five are worth one."""
SURE_REQUESTS = 5
"""Requests from which the same holds: fewer prompts may all be odd ones."""


def accepted_once(run: RunSummary) -> int:
    """Rounds that accepted a token."""
    return sum(run.acceptance.histogram[1:])


def rate_interval(run: RunSummary) -> Interval:
    """95% interval of the marginal rate at depth 1: exact over rounds, and where anything was
    accepted no narrower than over requests."""
    exact, spread = exact_interval(accepted_once(run), run.rounds), run.acceptance.marginal_interval
    over_requests = spread[0] if spread else None
    if not accepted_once(run) or over_requests is None:
        return exact
    return exact.hull(over_requests)


def judge(run: RunSummary) -> tuple[Trust, str]:
    """How sure it is that the rate at depth 1 is below NOTHING_BELOW, and why."""
    high, seen = rate_interval(run).high, f"{count(run.rounds, 'round')} of "
    seen += count(run.requests, "request")
    if not high < NOTHING_BELOW:
        return Trust.LOW, f"{seen} leave a rate of up to {percent(high)}"
    if run.rounds < SURE_ROUNDS:
        return Trust.MEDIUM, f"{seen}: it is sure from {SURE_ROUNDS} rounds on"
    if run.requests < SURE_REQUESTS:
        return Trust.MEDIUM, f"{seen}: it is sure from {SURE_REQUESTS} requests on"
    return Trust.HIGH, f"{seen} leave a rate below {percent(high)} (95 %, exact)"


def is_dead(run: RunSummary) -> bool:
    """Whether the drafter is dead for sure."""
    return run.acceptance.marginal[0] < NOTHING_BELOW and judge(run)[0] is Trust.HIGH


def none_accepted(run: RunSummary) -> str:
    """How many rounds accept anything, in words."""
    some, high = accepted_once(run), percent(rate_interval(run).high)
    if not some:
        return f"none of {count(run.rounds, 'round')} accepts a token: the rate is below {high}"
    return (
        f"{some:,} of {count(run.rounds, 'round')} accept{'s' if some == 1 else ''} a token: the "
        f"rate is below {high}"
    )
