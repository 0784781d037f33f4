"""Rules about a drafter that is weak from the first depth on, or becomes weak along the chain."""

from __future__ import annotations

from driftscope.analysis.findings.acceptance_losses import (
    FALLS_BELOW,
    LOW_BELOW,
    STOPS_BELOW,
    Loss,
    conditional_interval,
    loss_of,
    steepest,
)
from driftscope.analysis.findings.catalogue_entry import ALWAYS, Deciding, Entry, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.suspects import in_order, suspects_of
from driftscope.analysis.number_words import between_percent, count, percent


def acceptance_low(case: Case) -> Finding | None:
    """Find that acceptance at depth 1 is surely below half of the weakest published drafter's."""
    run, spread = case.run, case.run.acceptance.marginal_interval
    if loss_of(run) is not Loss.LOW or spread is None or spread[0] is None:
        return None
    trust, because = judged(run.requests, spread[0], below=LOW_BELOW)
    suspects = suspects_of(case, Loss.LOW)
    return Finding(
        id="acceptance_low",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="Acceptance is low from the first depth on",
        statement=f"{percent(run.acceptance.marginal[0])} of the rounds are accepted to depth 1"
        f"{between_percent(spread[0])}",
        evidence={
            "marginal_first": run.acceptance.marginal[0],
            **ends("marginal_first", spread[0]),
            "threshold": LOW_BELOW,
        },
        confidence=trust,
        because=because,
        advice="Compare this run with one of the drafter as it was trained, on the same "
        f"prompts.{in_order(suspects)}",
        causes=suspects.causes,
        ruled_out=suspects.ruled_out,
    )


def acceptance_falls(case: Case) -> Finding | None:
    """Find that acceptance is right at depth 1, but the conditional rate falls along the chain."""
    run, depth, loss = case.run, steepest(case.run), loss_of(case.run)
    if depth is None or loss not in (Loss.FALLS, Loss.STOPS):
        return None
    rate, spread = run.acceptance.conditional[depth - 1], conditional_interval(run, depth)
    first = run.acceptance.marginal[0]
    assert rate is not None and spread is not None  # noqa: S101  as steepest has it
    trust, because = judged(run.requests, spread, below=FALLS_BELOW * first)
    suspects = suspects_of(case, loss)
    return Finding(
        id="acceptance_falls",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="Acceptance falls faster along the chain than a healthy drafter's",
        statement=f"{percent(first)} of the rounds are accepted to depth 1; of the rounds that "
        f"reach depth {depth}, {percent(rate)} are accepted there{between_percent(spread)}",
        evidence={
            "depth": depth,
            "conditional": rate,
            **ends("conditional", spread),
            "marginal_first": first,
            "threshold": FALLS_BELOW * first,
        },
        confidence=trust,
        because=because,
        advice=f"Draft only {count(depth - 1, 'token')} per round until the cause is "
        f"fixed.{in_order(suspects)}",
        causes=suspects.causes,
        ruled_out=suspects.ruled_out,
        option=f'"num_speculative_tokens": {depth - 1}',
        cost_tps=case.cost_at_k(depth - 1),
    )


def _first_rate(case: Case) -> Deciding:
    acceptance = case.run.acceptance
    spread = acceptance.marginal_interval
    return Deciding(
        value=acceptance.marginal[0], interval=spread[0] if spread else None, bound=LOW_BELOW
    )


ENTRIES = (
    Entry(
        id="acceptance_low",
        title="Acceptance is low from the first depth on",
        meaning="The drafter works, but is rejected more often at depth 1 than any published one: "
        "something in its input differs from its training.",
        thresholds=(
            Threshold(
                name="LOW_BELOW",
                value=LOW_BELOW,
                means="upper end of the 95% interval of the marginal acceptance at depth 1",
                source="half of 0.585, the weakest published rate",
            ),
        ),
        need=ALWAYS,
        rule=acceptance_low,
        deciding=_first_rate,
    ),
    Entry(
        id="acceptance_falls",
        title="Acceptance falls faster along the chain than a healthy drafter's",
        meaning="Depth 1 is accepted as it should be, but what the drafter feeds itself misleads "
        "it from there on, or no chain is accepted beyond some depth.",
        thresholds=(
            Threshold(
                name="FALLS_BELOW",
                value=FALLS_BELOW,
                means="upper end of the 95% interval of the conditional acceptance at a depth, "
                "over the acceptance at depth 1",
                source="published live depths keep 0.8 or more; with a norm_output that is not "
                "applied 0.27 remains",
            ),
            Threshold(
                name="STOPS_BELOW",
                value=STOPS_BELOW,
                means="conditional acceptance at that depth below which acceptance is said to end "
                "there",
                source="the published dead tail is at 0",
            ),
        ),
        need=ALWAYS,
        rule=acceptance_falls,
    ),
)
