"""What sets two runs apart."""

from __future__ import annotations

from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.interval import difference
from driftscope.analysis.rules.acceptance import DEAD_BELOW
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import listed, percent


def parting_depth(first: RunSummary, second: RunSummary) -> int | None:
    """First depth from which the runs' marginal acceptance differs at every depth that is alive.

    Differs: the 95% interval of the difference leaves out 0. Requiring it of all deeper depths too
    keeps one chance difference among K from being called a parting.
    """
    a, b = first.acceptance.marginal_interval, second.acceptance.marginal_interval
    if a is None or b is None:
        return None
    parted = None
    for depth in range(min(first.k, second.k), 0, -1):
        x, y = (run.acceptance.marginal[depth - 1] for run in (first, second))
        if max(x, y) < DEAD_BELOW:
            continue
        if not difference(x, a[depth - 1], y, b[depth - 1]).excludes_zero():
            break
        parted = depth
    return parted


def runs_part(first: RunSummary, second: RunSummary) -> Finding | None:
    """Two runs accept differently from some depth on; says so, or that none shows it."""
    if first.acceptance.marginal_interval is None or second.acceptance.marginal_interval is None:
        return None
    depth = parting_depth(first, second)
    return _alike(first, second) if depth is None else _apart(first, second, depth)


def _apart(first: RunSummary, second: RunSummary, depth: int) -> Finding:
    a, b = first.acceptance.marginal, second.acceptance.marginal
    last = min(first.k, second.k)
    better = first if a[depth - 1] > b[depth - 1] else second
    since = f"after depth {depth - 1}" if depth > 1 else "from depth 1 on"
    return Finding(
        id="runs_part",
        severity=Severity.MEDIUM,
        runs=(first.label, second.label),
        title=f"Acceptance parts {since}",
        statement=f"at depth {depth} it is {_both(first, second, depth)}, and the 95% interval "
        "of the difference leaves out 0 from there on"
        + (f"; at depth {last} it is {_both(first, second, last)}" if last > depth else ""),
        evidence={
            "depth": depth,
            "marginal_first_run": a[depth - 1],
            "marginal_second_run": b[depth - 1],
            "last_depth": last,
            "last_first_run": a[last - 1],
            "last_second_run": b[last - 1],
        },
        advice=f"{better.label} accepts more from there on. Make sure that both runs answered the "
        "same prompts before you draw a conclusion.",
    )


def _both(first: RunSummary, second: RunSummary, depth: int) -> str:
    return " against ".join(
        f"{percent(run.acceptance.marginal[depth - 1])} ({run.label})" for run in (first, second)
    )


def _alike(first: RunSummary, second: RunSummary) -> Finding:
    names = listed((first.label, second.label))
    return Finding(
        id="runs_alike",
        severity=Severity.INFO,
        runs=(first.label, second.label),
        title="No depth tells the runs apart",
        statement="at the deepest depth that is alive, the 95% interval of the difference in "
        f"marginal acceptance of {names} has 0 in it",
        evidence={"depths": min(first.k, second.k)},
        advice="Record more requests if you expected a difference.",
    )
