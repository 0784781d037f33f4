"""Differences of one run from another, by depth or by label, coloured by their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from driftscope.analysis.compare import WHOLE, Comparison
from driftscope.analysis.statistics.intervals import Interval, difference
from driftscope_reports.drawing.chart import Kind, Series

WORSE, BETTER, SAME, APART = "▼ worse", "▲ better", "= no clear difference", "≠ differs"


class Good(IntEnum):
    """Direction that is better."""

    MORE = 1
    LESS = -1
    NEITHER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A difference with its 95% interval; None where a run lacks one."""

    value: float | None
    interval: Interval | None


def gap(
    a: float | None, a_spread: Interval | None, b: float | None, b_spread: Interval | None
) -> Gap:
    """Return b - a, for independent runs."""
    if a is None or b is None:
        return Gap(value=None, interval=None)
    if a_spread is None or b_spread is None:
        return Gap(value=b - a, interval=None)
    return Gap(value=b - a, interval=difference(b, b_spread, a, a_spread))


def compared(
    comparison: Comparison | None, metric: str, depth: int | None = None, segment: str = WHOLE
) -> Gap | None:
    """Return the difference of one figure from `driftscope compare`, paired if both runs answered
    the same prompts; None if the runs were not compared in it."""
    differences = comparison.at(metric, segment) if comparison else ()
    mine = [each for each in differences if each.depth == depth]
    return Gap(value=mine[0].difference, interval=mine[0].interval) if mine else None


def word(interval: Interval, good: Good) -> str:
    """Return the word for a difference with this interval."""
    if not interval.excludes_zero():
        return SAME
    if good is Good.NEITHER:
        return APART
    return BETTER if (interval.low > 0) == (good is Good.MORE) else WORSE


_STYLES = (
    (WORSE, "worse", "/"),
    (BETTER, "better", ""),
    (APART, "apart", "-"),
    (SAME, "same", "."),
)
"""Word, colour and pattern, so that differences are never shown by colour alone."""


def bars(
    xs: Sequence[float | str], gaps: Sequence[Gap], goods: Sequence[Good]
) -> tuple[Series, ...]:
    """Return the differences that have an interval, grouped by their word."""
    words = [
        word(each.interval, good) if each.interval else None
        for each, good in zip(gaps, goods, strict=True)
    ]
    return tuple(
        Series(
            name=outcome,
            kind=Kind.STACK,
            x=tuple(xs),
            y=tuple(g.value if w == outcome else None for g, w in zip(gaps, words, strict=True)),
            colour=colour,
            pattern=pattern,
            low=_ends(gaps, words, outcome, low=True),
            high=_ends(gaps, words, outcome, low=False),
        )
        for outcome, colour, pattern in _STYLES
        if outcome in words
    )


def _ends(
    gaps: Sequence[Gap], words: Sequence[str | None], outcome: str, *, low: bool
) -> tuple[float | None, ...]:
    return tuple(
        (g.interval.low if low else g.interval.high) if w == outcome and g.interval else None
        for g, w in zip(gaps, words, strict=True)
    )
