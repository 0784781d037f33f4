"""Ratios between two ways of asking the same prompts, with intervals over prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio as Means
from driftscope.analysis.statistics.intervals.cluster_ratio import ratio_of
from driftscope.analysis.statistics.intervals.degrees_of_freedom import student
from driftscope.analysis.statistics.intervals.interval import Interval

FEWEST_PAIRS = 5
"""Smallest number of pairs for an interval: with fewer, a variance over prompts is meaningless."""
MOST_APART = 100.0
"""Largest factor from the ratio to the upper end of its interval; beyond it there is no interval,
because a ratio that is only known within a factor of 100 is not known."""

Sums = Mapping[str, tuple[float, float]]
"""Numerator and denominator of a mean, such as tokens and rounds, by pairing key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ratio of a mean in one condition, or run, to that in another."""

    value: float
    interval: Interval | None
    """95% interval; None with fewer than FEWEST_PAIRS pairs, or without support."""
    pairs: int

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1."""
        return self.interval is not None and (self.interval.low > 1 or self.interval.high < 1)


def paired_ratio(a: Sums, b: Sums) -> Ratio | None:
    """Return mean(a) / mean(b) over the keys that both have; None if that is not a finite number.

    The jackknife leaves out both sides of a pair together, so that the difficulty of a prompt
    cancels out of the interval, which is symmetric for the logarithm.
    """
    keys = sorted(a.keys() & b.keys())
    if not keys:
        return None
    sums = np.array([[*a[key], *b[key]] for key in keys], dtype=np.float64)
    ours, theirs = (ratio_of(sums[:, at : at + 1], sums[:, at + 1 : at + 2]) for at in (0, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float((ours.value / theirs.value)[0])
    if not math.isfinite(value):
        return None
    return Ratio(value=value, interval=_interval(value, ours, theirs), pairs=len(keys))


def _interval(value: float, ours: Means, theirs: Means) -> Interval | None:
    n = len(ours.influence)
    if n < FEWEST_PAIRS or value <= 0:
        return None
    moved = ours.influence / ours.value - theirs.influence / theirs.value
    error = math.sqrt((n - 1) / n * float(np.square(moved).sum()))
    half = float(student(np.minimum(ours.df, theirs.df))[0]) * error
    if not (half < math.log(MOST_APART) and ours.supported[0] and theirs.supported[0]):
        return None
    return Interval.of(value * math.exp(-half), value * math.exp(half))
