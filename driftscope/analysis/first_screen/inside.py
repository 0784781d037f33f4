"""Claims about the inside of the drafter: its hidden state, and what acceptance goes with."""

from __future__ import annotations

from driftscope.analysis.findings.attention_claim import attention_claim
from driftscope.analysis.findings.dead_drafter import NOTHING_BELOW
from driftscope.analysis.first_screen.claim import Answer, Claim, Topic
from driftscope.analysis.first_screen.within_request_words import clauses
from driftscope.analysis.number_words import times
from driftscope.analysis.statistics.attention_drift import Answer as Drifts
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.hidden import per_depth

STEADY_WITHIN = 1.026
"""Growth per depth within which, up or down, the hidden state keeps its size: 1.2 by depth 8."""
_ANSWERS = {
    Drifts.NO_DRIFT: Answer.YES,
    Drifts.DRIFT: Answer.NO,
    Drifts.CANNOT_TELL: Answer.CANNOT_TELL,
}


def inside(run: RunSummary) -> Claim | None:
    """Return whether attention drifts, and other properties of the drafter's inside.

    None for a drafter of a single depth, in which nothing can change over depth, and for a dead
    one, whose inside does not matter.
    """
    if run.depths < 2 or run.acceptance.marginal[0] < NOTHING_BELOW:
        return None
    attention = attention_claim(run)
    parts = [attention.words, _growth(run), *clauses(run.within_request)]
    return Claim(
        topic=Topic.INSIDE,
        run=run.label,
        question="Does attention stay where it is at depth 1?",
        answer=_ANSWERS[attention.answer],
        sentence="; ".join(part for part in parts if part),
        estimate=attention.estimate,
        interval=attention.interval,
    )


def _growth(run: RunSummary) -> str:
    growth = run.hidden.growth
    if growth is None:
        return ""
    each = per_depth(growth, run.depths)
    if each > STEADY_WITHIN:
        verb = "grows to"
    elif each < 1 / STEADY_WITHIN:
        verb = "shrinks to"
    else:
        return f"the hidden state keeps its size ({times(growth)} by depth {run.depths})"
    return (
        f"the hidden state {verb} {times(growth)} by depth {run.depths} ({times(each)} per depth)"
    )
