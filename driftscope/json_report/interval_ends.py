"""The ends of an interval, as plain values of a JSON document."""

from __future__ import annotations

from driftscope.analysis.statistics.intervals import Interval


def ends(interval: Interval | None) -> dict[str, float] | None:
    """Return the ends; None without an interval."""
    return None if interval is None else {"low": interval.low, "high": interval.high}
