"""95% intervals, and intervals of a difference and a ratio of two independent estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95% interval with two finite ends.

    ==============================  =======================================================
    `Interval.of(0.2, 0.4)`         from 0.2 to 0.4
    `Interval.of(0.2, math.inf)`    None, as for NaN: there is no usable interval
    `of(0.2, 1.4).within(0, 1)`     clipped to the range of possible values
    ==============================  =======================================================
    """

    low: float
    high: float
    clusters: float | None = field(default=None, compare=False, repr=False)
    """Effective number of clusters behind it; None if it is not over clusters."""

    @classmethod
    def of(cls, low: float, high: float, clusters: float | None = None) -> Interval | None:
        """Return the interval, or None if an end is not finite. Intervals of unchecked ends are
        made here."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return None
        return cls(low=float(low), high=float(high), clusters=clusters)

    def within(self, least: float, most: float) -> Interval:
        """Return the interval with both ends clipped to `least` and `most`, which may be
        infinite."""
        low, high = (min(max(end, least), most) for end in (self.low, self.high))
        return Interval(low=low, high=high, clusters=self.clusters)

    def hull(self, other: Interval) -> Interval:
        """Return the smallest interval that contains both."""
        return Interval(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            clusters=fewer(self.clusters, other.clusters),
        )

    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.low > 0 or self.high < 0


Intervals = tuple[Interval | None, ...]
"""Intervals of several figures; None for a figure without support."""


def fewer(a: float | None, b: float | None) -> float | None:
    """Return the smaller number of clusters; the known one if the other is None."""
    return min((each for each in (a, b) if each is not None), default=None)


def difference(a: float, a_interval: Interval, b: float, b_interval: Interval) -> Interval:
    """Return the 95% interval of a - b for independent estimates, from their own intervals.

    This is the square-and-add rule (Newcombe 1998; Zou and Donner 2008), which keeps their
    asymmetry.
    """
    down = math.hypot(a - a_interval.low, b_interval.high - b)
    up = math.hypot(a_interval.high - a, b - b_interval.low)
    return Interval(
        low=a - b - down,
        high=a - b + up,
        clusters=fewer(a_interval.clusters, b_interval.clusters),
    )


def ratio(
    a: float | None, a_interval: Interval | None, b: float | None, b_interval: Interval | None
) -> tuple[float, Interval] | None:
    """Return a / b for independent positive estimates, and its 95% interval; None if one of them is
    not known or not surely positive.

    The interval is that of the difference of their logarithms, see `difference` (MOVER; Donner and
    Zou 2012).
    """
    logs = _log(a, a_interval), _log(b, b_interval)
    if logs[0] is None or logs[1] is None:
        return None
    apart = difference(*logs[0], *logs[1])
    interval = Interval.of(math.exp(apart.low), math.exp(apart.high))
    return None if interval is None else (math.exp(logs[0][0] - logs[1][0]), interval)


def _log(value: float | None, interval: Interval | None) -> tuple[float, Interval] | None:
    if value is None or interval is None or not min(value, interval.low) > 0:
        return None
    return math.log(value), Interval(low=math.log(interval.low), high=math.log(interval.high))
