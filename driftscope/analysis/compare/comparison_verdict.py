"""The verdict of a comparison: one sentence, the same in terminal and JSON."""

from __future__ import annotations

import math

from driftscope.analysis.compare.run_comparison import LENGTH, MARGINAL, Comparison, Difference
from driftscope.analysis.compare.time_comparison import TPOT, TTFT
from driftscope.analysis.number_words import (
    NOTHING,
    count,
    largest,
    listed,
    milliseconds,
    percent,
    runs_of_numbers,
)
from driftscope.analysis.statistics.mix_adjustment import OTHER

_ALONE = {"": "requests without a label", OTHER: "rare labels together"}
"""Words for names of labels that are no names."""
TIMES = {TPOT: "time per output token", TTFT: "time to first token"}
"""Words for the metrics that are times."""


def verdict(comparison: Comparison) -> str:
    """Return one sentence: from which depth which run accepts more, or that no difference is
    shown."""
    if times := comparison.at(TPOT):
        return _faster(comparison, times[0])
    return _of_acceptance(comparison) + (", at one mix of labels" if comparison.mix else "")


def mix_words(comparison: Comparison) -> str:
    """Return a sentence on the mix of labels at which differences over all requests are taken; ""
    if they are taken as served."""
    if not comparison.mix:
        return ""
    if len(comparison.mix) == 1:
        (name,) = comparison.mix
        return (
            "They served labels in other shares, so differences over all requests are taken where "
            f"both have enough prompts: {_ALONE.get(name, name)}."
        )
    shares = listed([f"{percent(share)} {name}" for name, share in comparison.mix.items()])
    return (
        "They served labels in other shares, so differences over all requests are taken at one "
        f"mix: {shares} of the rounds."
    )


def _of_acceptance(comparison: Comparison) -> str:
    depth, by_depth = comparison.parts_from, comparison.at(MARGINAL)
    (length,) = comparison.at(LENGTH)
    if depth is not None:
        at = by_depth[depth - 1]
        noun = "depth" if len(comparison.apart_at) == 1 else "depths"
        return (
            f"{_better(comparison, at)} accepts more from depth {depth} on: {_apart(at)} there "
            f"(95% interval {between_ends(at)}); the runs differ at {noun} "
            f"{runs_of_numbers(comparison.apart_at)}{_opposite(comparison, at, length)}"
        )
    if length.differs:
        return (
            f"{_better(comparison, length)} has the longer acceptance length: {_apart(length)} "
            f"(95% interval {between_ends(length)}), but no single depth differs"
        )
    some = [d for d in comparison.differences if d.differs]
    if some:
        return f"the runs differ in {count(len(some), 'figure')} of single labels, but not overall"
    if comparison.bound is None:
        return "no difference is shown: too little is recorded to bound it"
    return f"no difference is shown: {largest(comparison.bound)}"


def _opposite(comparison: Comparison, at: Difference, length: Difference) -> str:
    """Return a clause on the other run if that one has the longer acceptance length, else ""."""
    if (at.difference > 0) == (length.difference > 0):
        return ""
    return f"; {_better(comparison, length)} has the longer acceptance length: {_apart(length)}"


def _faster(comparison: Comparison, tpot: Difference) -> str:
    if not tpot.differs:
        return "no difference in time per output token is shown"
    better = comparison.second if tpot.difference < 0 else comparison.first
    low, high = sorted((tpot.first, tpot.second))
    return (
        f"{better} serves faster: {milliseconds(low)} per output token compared with "
        f"{milliseconds(high)} (95% interval of the difference {between_ends(tpot)})"
    )


def _better(comparison: Comparison, at: Difference) -> str:
    return comparison.second if at.difference > 0 else comparison.first


def _apart(at: Difference) -> str:
    low, high = sorted((at.first, at.second))
    return f"{high:.3f} compared with {low:.3f}"


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
