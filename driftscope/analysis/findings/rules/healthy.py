"""Rule about a healthy drafter, made when nothing else is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.compare.run_comparison import accepts_less
from driftscope.analysis.findings.catalogue_entry import ALWAYS, Entry, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import between, count, listed, number, percent
from driftscope.analysis.statistics.intervals.cluster_ratio import FEW_REQUESTS

ALIVE_ABOVE = 0.1
"""Smallest marginal acceptance at depth K of a healthy drafter: one round in ten is accepted whole.
Below that the last depth deserves attention, whatever else is in order."""


def healthy(case: Case, findings: Sequence[Finding]) -> Finding | None:
    """Find a healthy drafter: no finding of medium or high severity is about the run, its last
    depth is alive, and it does not accept less than the run that it is compared with."""
    run = case.run
    wrong = [f for f in findings if f.severity in (Severity.HIGH, Severity.MEDIUM)]
    if any(run.label in f.runs and f.id != "runs_part" for f in wrong):
        return None
    if run.acceptance.marginal[-1] < ALIVE_ABOVE or run.clusters < FEW_REQUESTS:
        return None
    if accepts_less(case.comparison):
        return None
    spread = run.acceptance.mean_length_interval
    unseen = [
        name
        for name, there in (
            ("hidden state", run.hidden.growth is not None),
            ("attention", run.attention.self_mass is not None),
        )
        if not there
    ]
    not_compared = (
        "" if case.comparison else "; without a baseline it is unknown what it should accept"
    )
    return Finding(
        id="healthy",
        severity=Severity.GOOD,
        runs=(run.label,),
        title="The drafter is healthy",
        statement=f"rounds yield {number(run.acceptance.mean_length)} tokens{between(spread)}, "
        f"{percent(run.acceptance.marginal[-1])} of the rounds are accepted to depth {run.k}, and "
        "nothing that was measured drifts or fails",
        evidence={
            "mean_length": run.acceptance.mean_length,
            **ends("mean_length", spread),
            "marginal_last": run.acceptance.marginal[-1],
            "threshold": ALIVE_ABOVE,
        },
        confidence=Trust.MEDIUM if unseen or not_compared else Trust.HIGH,
        because=f"no {listed(unseen)} was recorded"
        if unseen
        else f"{count(run.requests, 'request')}, with the drafter's internals "
        f"recorded{not_compared}",
        advice="Nothing to do.",
    )


ENTRIES = (
    Entry(
        id="healthy",
        title="The drafter is healthy",
        meaning="No finding asks for action, some rounds are accepted to depth K, acceptance is "
        "not lower than the baseline's, and there are enough requests to say so.",
        thresholds=(
            Threshold(
                name="ALIVE_ABOVE",
                value=ALIVE_ABOVE,
                means="marginal acceptance at depth K",
                source="driftscope: one round in ten is fully accepted",
            ),
            Threshold(
                name="FEW_REQUESTS",
                value=FEW_REQUESTS,
                means="fewest requests for which a drafter is called healthy",
                source="the usual rule of thumb for a percentile bootstrap over clusters",
            ),
        ),
        need=ALWAYS,
        rule=lambda case: healthy(case, ()),
    ),
)
"""Entry evaluated last, with the findings of the other rules."""
