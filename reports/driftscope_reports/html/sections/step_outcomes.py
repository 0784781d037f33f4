"""Outcomes of decode steps: names, colours, patterns and shares, identical in every picture."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.closeup import ACCEPTED, REJECTED
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.vocabulary import UndraftedReason

_REASONS = {
    UndraftedReason.K_ZERO: "K = 0 by batch size",
    UndraftedReason.NO_DRAFT: "the drafter returned none",
}
_SIGNS = {
    ACCEPTED: "kept",
    REJECTED: "rejected",
    UndraftedReason.K_ZERO: "K = 0",
    UndraftedReason.CONTEXT_LIMIT: "context",
    UndraftedReason.STRUCTURED_OUTPUT: "grammar",
    UndraftedReason.PREEMPTED: "preempt",
    UndraftedReason.TOKEN_BUDGET: "budget",
    UndraftedReason.NO_DRAFT: "none",
}


ON_PURPOSE = " (on purpose)"


def outcomes_of(runs: Sequence[RunSummary]) -> list[str]:
    """Return the outcomes of steps in any of the runs: best first, deliberate reasons before
    others."""
    reasons = {name for run in runs for name in run.fallback.by_reason}
    return sorted((ACCEPTED, REJECTED, *reasons), key=order)


def share(run: RunSummary, name: str) -> tuple[float | None, Interval | None]:
    """Return the share of the run's decode steps with this outcome, and its interval; 0 for a
    reason that never occurred."""
    counts, spread = run.fallback, run.fallback_spread
    if not counts.steps:
        return None, None
    if name == ACCEPTED:
        useful = counts.steps - counts.rejected_rounds - counts.undrafted
        return useful / counts.steps, spread.accepted
    if name == REJECTED:
        return counts.rejected_share, spread.rejected
    return counts.by_reason.get(name, 0) / counts.steps, spread.by_reason.get(name, spread.never)


def order(name: str) -> tuple[int, str]:
    """Return the sort key of an outcome."""
    first = {ACCEPTED: 0, REJECTED: 1}
    deliberate = 2 if name in UndraftedReason.DELIBERATE else 3
    return first.get(name, deliberate), name


def colour(name: str) -> str:
    """Return the colour of the outcome's bars."""
    if name == ACCEPTED:
        return "step-accepted"
    if name == REJECTED:
        return "step-rejected"
    return "step-deliberate" if name in UndraftedReason.DELIBERATE else "step-failed"


def pattern(name: str, among: Sequence[str]) -> str:
    """Return the fill pattern of the outcome's bars; `among` are the outcomes of the picture."""
    if name in (ACCEPTED, REJECTED):
        return {ACCEPTED: "", REJECTED: "/"}[name]
    return ("-", "x", ".", "\\", "|")[among.index(name) % 5]


def label(name: str) -> str:
    """Return the full name of the outcome."""
    if name == ACCEPTED:
        return "at least one draft token accepted"
    if name == REJECTED:
        return "rejected round"
    reason = _REASONS.get(name, name.replace("_", " "))
    kind = ON_PURPOSE if name in UndraftedReason.DELIBERATE else ""
    return f"no draft: {reason}{kind}"


def short_label(name: str) -> str:
    """Return a name short enough for an axis."""
    return _SIGNS.get(name, name.replace("_", " "))
