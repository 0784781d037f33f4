"""95% intervals of shares and quantiles of independent cases, such as finished requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from driftscope.analysis.statistics.intervals.degrees_of_freedom import Array, student
from driftscope.analysis.statistics.intervals.interval import CONFIDENCE, Interval


def share_interval(some: int, of: int) -> Interval:
    """Return Wilson's interval of a share of independent cases, such as finished requests."""
    quantile = np.array([NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)])
    low, high = wilson(np.array([some / of]), np.array([float(of)]), quantile)
    return Interval(low=float(low[0]), high=float(high[0]))


def exact_interval(some: int, of: int, confidence: float = CONFIDENCE) -> Interval:
    """Return Clopper and Pearson's interval of a share of independent cases, whose coverage is
    never below `confidence`, even if none or all of the cases count.

    In these two cases it is one-sided: 0 of n cases leave a share below 1 - (1 - confidence)^(1/n),
    about 3 / n. Raises ValueError without a case.
    """
    from scipy.special import betaincinv

    if not 0 <= some <= of or not of:
        raise ValueError(f"{some} of {of} cases is no share")
    tail = (1 - confidence) / (1 if some in (0, of) else 2)
    low = 0.0 if some == 0 else float(betaincinv(some, of - some + 1, tail))
    high = 1.0 if some == of else float(betaincinv(some + 1, of - some, 1 - tail))
    return Interval(low=low, high=high)


def wilson(rate: Array, worth: Array, quantile: Array) -> tuple[Array, Array]:
    """Return both ends, [m] each, for rates over `worth` independent cases."""
    t2 = np.square(quantile)
    middle = (rate + t2 / (2 * worth)) / (1 + t2 / worth)
    half = np.sqrt(t2 / worth * (rate * (1 - rate) + t2 / (4 * worth))) / (1 + t2 / worth)
    low, high = np.minimum(middle - half, rate), np.maximum(middle + half, rate)
    return np.clip(low, 0, 1), np.clip(high, 0, 1)


def quantile_interval(
    share: float, n: int, at: Sequence[float], quantiles: Sequence[float]
) -> Interval | None:
    """Return the interval of the quantile at `share` of `n` independent values, whose `quantiles`
    at the shares `at` are known. Its ends are the order statistics that lie as many standard errors
    of a binomial share away (Conover 1999, 3.2), which assumes no shape. None if these lie beyond
    the smallest or the largest value."""
    if not n:
        return None
    half = float(student(np.inf)) * math.sqrt(share * (1 - share) / n)
    if share - half < 0 or share + half > 1:
        return None
    low, high = np.interp((share - half, share + half), at, quantiles)
    return Interval.of(float(low), float(high))
