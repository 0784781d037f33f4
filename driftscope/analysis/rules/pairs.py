"""What sets two runs apart."""

from __future__ import annotations

from driftscope.analysis.case import Case
from driftscope.analysis.entry import Entry, Need
from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.interval import Interval, difference
from driftscope.analysis.rules.acceptance import DEAD_BELOW
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.trust import ends, judged
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
        of_x, of_y = a[depth - 1], b[depth - 1]
        if of_x is None or of_y is None or not difference(x, of_x, y, of_y).excludes_zero():
            break
        parted = depth
    return parted


def runs_part(case: Case) -> Finding | None:
    """A run accepts differently from the first one from some depth on."""
    first = first_of(case)
    depth = None if first is None else parting_depth(first, case.run)
    return None if first is None or depth is None else _apart(first, case.run, depth)


def runs_alike(case: Case) -> Finding | None:
    """Nothing tells a run's acceptance from the first one's."""
    first = first_of(case)
    known = first is not None and all(
        each.acceptance.marginal_interval is not None for each in (first, case.run)
    )
    if first is None or not known or parting_depth(first, case.run) is not None:
        return None
    return _alike(first, case.run)


def first_of(case: Case) -> RunSummary | None:
    """The run that others are held against: the baseline, or the first of several."""
    return case.reference


def _apart(first: RunSummary, second: RunSummary, depth: int) -> Finding:
    a, b = first.acceptance.marginal, second.acceptance.marginal
    last = min(first.k, second.k)
    better = first if a[depth - 1] > b[depth - 1] else second
    trust, because = judged(
        min(first.requests, second.requests),
        _difference(first, second, depth),
        assumed=["two runs may have answered different prompts"],
    )
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
            **ends("difference", _difference(first, second, depth)),
        },
        confidence=trust,
        because=because,
        advice=f"{better.label} accepts more from there on. Make sure that both runs answered the "
        "same prompts before you draw a conclusion.",
    )


def _difference(first: RunSummary, second: RunSummary, depth: int) -> Interval:
    """Of the marginal acceptance at a depth."""
    a, b = first.acceptance, second.acceptance
    of_a, of_b = ((each.marginal_interval or ())[depth - 1] for each in (a, b))
    assert of_a is not None and of_b is not None
    return difference(a.marginal[depth - 1], of_a, b.marginal[depth - 1], of_b)


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
        confidence=judged(min(first.requests, second.requests), None)[0],
        because="more requests may still tell them apart",
        advice="Record more requests if you expected a difference.",
    )


_NEED = Need[Case](
    words="a second run, both with two requests or more",
    met=lambda case: (
        case.reference is not None and case.run.acceptance.marginal_interval is not None
    ),
)

ENTRIES = (
    Entry(
        id="runs_part",
        title="Acceptance parts after a depth",
        meaning="From some depth on the 95% interval of the difference between two runs leaves out "
        "0, at every depth that is alive.",
        thresholds=(),
        need=_NEED,
        rule=runs_part,
    ),
    Entry(
        id="runs_alike",
        title="No depth tells the runs apart",
        meaning="There is no such depth.",
        thresholds=(),
        need=_NEED,
        rule=runs_alike,
    ),
)
