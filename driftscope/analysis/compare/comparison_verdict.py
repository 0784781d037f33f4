"""The verdict of a comparison: one sentence, the same in terminal and JSON."""

from __future__ import annotations

import math

from driftscope.analysis.compare.run_comparison import LENGTH, MARGINAL, Comparison, Difference
from driftscope.analysis.compare.time_comparison import TPOT, TTFT
from driftscope.analysis.number_words import NOTHING, count, largest, milliseconds, runs_of_numbers

TIMES = {TPOT: "time per output token", TTFT: "time to first token"}
"""Words for the metrics that are times."""


def verdict(found: Comparison) -> str:
    """Return one sentence: from which depth which run accepts more, or that no difference is
    shown."""
    if times := found.at(TPOT):
        return _faster(found, times[0])
    depth, by_depth = found.parts_from, found.at(MARGINAL)
    (length,) = found.at(LENGTH)
    if depth is not None:
        at = by_depth[depth - 1]
        noun = "depth" if len(found.apart_at) == 1 else "depths"
        return (
            f"{_better(found, at)} accepts more from depth {depth} on: {_apart(at)} there (95% "
            f"interval {between_ends(at)}); the runs differ at {noun} "
            f"{runs_of_numbers(found.apart_at)}{_opposite(found, at, length)}"
        )
    if length.differs:
        return (
            f"{_better(found, length)} has the longer acceptance length, by "
            f"{_apart(length)} (95% interval {between_ends(length)}), and no single depth differs"
        )
    some = [d for d in found.differences if d.differs]
    if some:
        return f"the runs differ in {count(len(some), 'figure')} of single labels, and not overall"
    if found.bound is None:
        return "nothing tells the runs apart: too little is recorded to say how far apart they are"
    return f"nothing tells the runs apart: {largest(found.bound)}"


def _opposite(found: Comparison, at: Difference, length: Difference) -> str:
    """Return a clause on the other run if that one has the longer acceptance length, else ""."""
    if (at.difference > 0) == (length.difference > 0):
        return ""
    return f"; {_better(found, length)} has the longer acceptance length, {_apart(length)}"


def _faster(found: Comparison, tpot: Difference) -> str:
    if not tpot.differs:
        return "nothing tells the runs' times per output token apart"
    better = found.second if tpot.difference < 0 else found.first
    low, high = sorted((tpot.first, tpot.second))
    return (
        f"{better} serves faster: {milliseconds(low)} per output token against "
        f"{milliseconds(high)} (95% interval of the difference {between_ends(tpot)})"
    )


def _better(found: Comparison, at: Difference) -> str:
    return found.second if at.difference > 0 else found.first


def _apart(at: Difference) -> str:
    low, high = sorted((at.first, at.second))
    return f"{high:.3f} against {low:.3f}"


def between_ends(each: Difference) -> str:
    """Return the ends of the interval in words, a dash where there is none."""
    if each.interval is None:
        return "–"
    return f"{signed(each, each.interval.low)} to {signed(each, each.interval.high)}"


def signed(each: Difference, value: float) -> str:
    """Return a difference with its sign, in the unit of the metric."""
    if not math.isfinite(value):
        return NOTHING
    return f"{1000 * value:+.2f} ms" if each.metric in TIMES else f"{value:+.3f}"
