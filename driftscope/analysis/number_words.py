"""Formatting of numbers, shared by findings, terminal and report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from driftscope.analysis.statistics.intervals import Interval

NOTHING = "–"
"""Text for a figure that does not exist; such a figure is never shown as 0."""


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with fixed digits, or as the dash."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """Format a ratio: "2.52×"."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.2f}×"


def percent(value: float | None) -> str:
    """Format a share, with one decimal where a whole number would be too coarse."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{100 * value:.0f}%" if value >= 0.0995 or value == 0 else f"{100 * value:.1f}%"


def points(share: float) -> str:
    """Format a difference of shares: "12.3 points"."""
    return f"{100 * share:.1f} points"


def ks_of(ks: Sequence[int]) -> str:
    """Format the K that a run drafted: "K = 7", or "K = 2, 4 and 7"."""
    return f"K = {listed([str(k) for k in ks])}"


def milliseconds(value_s: float | None) -> str:
    """Format a duration, given in seconds, in milliseconds."""
    if value_s is None or not math.isfinite(value_s):
        return NOTHING
    return f"{1000 * value_s:.{1 if value_s < 0.1 else 0}f} ms"


def between(interval: Interval | None, digits: int = 2) -> str:
    """Format a 95% interval in brackets, with a space before; "" without an interval."""
    if interval is None:
        return ""
    return f" (95% interval {interval.low:.{digits}f} to {interval.high:.{digits}f})"


def between_percent(interval: Interval | None) -> str:
    """Format the 95% interval of a share or gain in brackets, with a space before; "" without an
    interval."""
    if interval is None:
        return ""
    return f" (95% interval {percent(interval.low)} to {percent(interval.high)})"


def lasted(seconds: float) -> str:
    """Format a duration: "4.4 seconds", "12.0 minutes", "1.5 hours"."""
    if seconds < 120:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def listed(names: Sequence[str]) -> str:
    """Join names: "a", "a and b", "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: "1 request", "2,000 requests"."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def runs_of_numbers(numbers: Sequence[int]) -> str:
    """Format ascending whole numbers in short: "3", "1 to 4 and 6"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    spans_in_words = []
    for first, last in spans:
        near = [str(number) for number in range(first, last + 1)]
        spans_in_words += near if len(near) < 3 else [f"{first} to {last}"]
    return listed(spans_in_words)


def largest(bound: float) -> str:
    """Return in words the equivalence that a comparison of two runs shows."""
    return f"a difference larger than {100 * bound:.1f} points can be excluded"


def moment(time_s: float) -> str:
    """Return a Unix time as a date and a time of day, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
