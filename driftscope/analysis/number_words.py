"""How numbers are said: the same in findings, terminal and report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.statistics.interval import Interval

NOTHING = "–"
"""Shown for a figure that does not exist; never 0."""


def number(value: float | None, digits: int = 2) -> str:
    """Fixed digits, or the dash."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """A ratio: "2.52×"."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.2f}×"


def percent(value: float | None) -> str:
    """A share, with a decimal where the whole number would say too little."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{100 * value:.0f}%" if value >= 0.0995 or value == 0 else f"{100 * value:.1f}%"


def ks_of(ks: Sequence[int]) -> str:
    """The K that a run drafted: "K = 7", or "K = 2, 4 and 7"."""
    return f"K = {listed([str(k) for k in ks])}"


def milliseconds(value_s: float | None) -> str:
    """A duration given in seconds."""
    if value_s is None or not math.isfinite(value_s):
        return NOTHING
    return f"{1000 * value_s:.{1 if value_s < 0.1 else 0}f} ms"


def between(interval: Interval | None, digits: int = 2) -> str:
    """The 95% interval in brackets, with a space before; nothing when there is none."""
    if interval is None:
        return ""
    return f" (95% interval {interval.low:.{digits}f} to {interval.high:.{digits}f})"


def between_percent(interval: Interval | None) -> str:
    """The 95% interval of a share or gain in brackets, with a space before; nothing when there is
    none."""
    if interval is None:
        return ""
    return f" (95% interval {percent(interval.low)} to {percent(interval.high)})"


def lasted(seconds: float) -> str:
    """How long something took: "4.4 seconds", "12.0 minutes", "1.5 hours"."""
    if seconds < 120:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """ "1 request", "2,000 requests"."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def runs_of_numbers(numbers: Sequence[int]) -> str:
    """Ascending whole numbers in short: "3", "1 to 4 and 6"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    said = []
    for first, last in spans:
        near = [str(number) for number in range(first, last + 1)]
        said += near if len(near) < 3 else [f"{first} to {last}"]
    return listed(said)


def largest(bound: float) -> str:
    """The equivalence that a comparison of two runs shows."""
    return f"no difference larger than {100 * bound:.1f} points is compatible with these runs"
