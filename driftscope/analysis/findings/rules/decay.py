"""Rule about acceptance that decays over a run."""

from __future__ import annotations

from driftscope.analysis.circumstances import kept_of, usable
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.rules.acceptance_drops import worst_drop
from driftscope.analysis.number_words import lasted, listed, number
from driftscope.analysis.statistics.strata import ENOUGH_REQUESTS

DECAYED_BELOW = 0.9
"""Accepted tokens per round in the last quarter of a run over those in the first. No figure is
published (vllm#41838 reports the effect); at a loss of a tenth the best K by the cost model begins
to change."""
MIX_SHIFT = 0.1
"""Change of a label's share between the first and the last quarter above which the mix of requests,
not time, may explain a decay."""


def acceptance_decays(case: Case) -> Finding | None:
    """Find that requests that begin late accept clearly less than the first ones; reported for a
    slope only."""
    groups = usable(case.run.groups.time)
    if worst_drop(case.run.changes) is not None or not _moves(case):
        return None
    if len(groups) < 2 or groups[0].name != case.run.groups.time[0].name:
        return None
    first, last = groups[0], groups[-1]
    estimate = kept_of(first, last, tests=1)
    if estimate is None or not estimate[0] < DECAYED_BELOW:
        return None
    kept, spread = estimate
    shifted = _shifted(case)
    assumed = [f"the mix of requests changed as well ({shifted})"] if shifted else []
    trust, because = judged(last.requests + first.requests, spread, below=1.0, assumed=assumed)
    return Finding(
        id="acceptance_decays",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="Acceptance decays over the run",
        statement="rounds of requests in the first quarter of "
        f"{lasted(case.run.groups.duration_s)} yield {number(first.mean_length)} tokens, in "
        f"the last {number(last.mean_length)}",
        evidence={
            "mean_length_first": first.mean_length,
            **ends("mean_length_first", first.mean_length_interval),
            "mean_length_last": last.mean_length,
            **ends("mean_length_last", last.mean_length_interval),
            "kept": kept,
            **ends("kept", spread),
            "duration_s": case.run.groups.duration_s,
            "threshold": DECAYED_BELOW,
        },
        confidence=trust,
        because=because,
        advice="Compare the early and the late requests (labels, context lengths, temperature). If "
        "they are alike, restart the engine and see whether acceptance recovers. If it does, the "
        "engine is at fault (prefix cache, drafter cache), which is worth a bug report.",
        cost_tps=case.cost_of_losing(groups[1:], first.mean_length),
    )


def _moves(case: Case) -> bool:
    """Whether requests of one kind changed over time, and traffic is no explanation; True if there
    are too few requests to test it."""
    changes = case.run.changes
    return changes is None or (bool(changes.points) and not changes.alike)


def _shifted(case: Case) -> str:
    """Return in words the labels whose share of the rounds changed much."""
    shares = case.run.groups.shares.items()
    names = [label for label, each in shares if abs(each[-1] - each[0]) > MIX_SHIFT]
    return listed([f'"{name}"' for name in names])


_TIME = Need[Case](
    words=f"{ENOUGH_REQUESTS} requests in the first quarter of the run and in a later one",
    met=lambda case: len(usable(case.run.groups.time)) > 1,
)

ENTRIES = (
    Entry(
        id="acceptance_decays",
        title="Acceptance decays over the run",
        meaning="Requests that begin in the last quarter of a run accept clearly fewer tokens than "
        "those of the first quarter, without a single moment of change.",
        thresholds=(
            Threshold(
                name="DECAYED_BELOW",
                value=DECAYED_BELOW,
                means="accepted tokens per round, last quarter over first",
                source="driftscope: at this loss the best K begins to change; reported without "
                "figures in vllm#41838",
            ),
            Threshold(
                name="MIX_SHIFT",
                value=MIX_SHIFT,
                means="change of a label's share of the rounds that lowers the confidence",
                source="driftscope",
            ),
        ),
        need=_TIME,
        rule=acceptance_decays,
    ),
)
