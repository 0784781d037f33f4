"""95% intervals: of a difference and a ratio of estimates, and of shares of independent cases."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Matrix

CONFIDENCE = 0.95
Z95 = 1.959964
"""Half-width of a 95% interval of a normal estimate, in standard errors."""
FOR_POWER = (1 + 0.84 / 1.96) ** 2
"""Factor of a number of requests at which a difference is decided in 80 % of recordings: at the
number at which its interval just excludes 0, half of them do not decide it. 0.84 and 1.96 are the
normal distribution's quantiles of 80 % and 97.5 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95% interval with two finite ends.

    ==============================  =======================================================
    `Interval.between(0.2, 0.4)`         from 0.2 to 0.4
    `Interval.between(0.2, math.inf)`    None, as for NaN: there is no usable interval
    `of(0.2, 1.4).within(0, 1)`     clipped to the range of possible values
    ==============================  =======================================================
    """

    low: float
    high: float
    clusters: float | None = field(default=None, compare=False, repr=False)
    """Effective number of clusters behind it; None if it is not over clusters."""

    @classmethod
    def between(cls, low: float, high: float, clusters: float | None = None) -> Interval | None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure, measured or bounded, with the ends between which it lies."""

    value: float
    """Measured value, or a model's guess; NaN if it is impossible, such as a time of 0."""
    interval: Interval | None
    """95% interval of a measured figure; bounds of one that was not. None if there is no support:
    then the figure is not known."""

    def surely_above(self, bound: float) -> bool:
        """Whether the whole interval lies above `bound`."""
        return self.interval is not None and self.interval.low > bound


Intervals = tuple[Interval | None, ...]
"""Intervals of several figures; None for a figure without support."""


def fewer(a: float | None, b: float | None) -> float | None:
    """Return the smaller number of clusters; the known one if the other is None."""
    return min((clusters for clusters in (a, b) if clusters is not None), default=None)


def difference(a: float, a_interval: Interval, b: float, b_interval: Interval) -> Interval:
    """Return the 95% interval of a - b for independent estimates, from their own intervals.

    This is the square-and-add rule (Newcombe 1998; Zou and Donner 2008), which keeps their
    asymmetry.
    """
    down = math.hypot(a - a_interval.low, b_interval.high - b)
    up = math.hypot(a_interval.high - a, b - b_interval.low)
    return Interval(
        low=a - b - down, high=a - b + up, clusters=fewer(a_interval.clusters, b_interval.clusters)
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
    log_ratio = difference(*logs[0], *logs[1])
    interval = Interval.between(math.exp(log_ratio.low), math.exp(log_ratio.high))
    return None if interval is None else (math.exp(logs[0][0] - logs[1][0]), interval)


def _log(value: float | None, interval: Interval | None) -> tuple[float, Interval] | None:
    if value is None or interval is None or not min(value, interval.low) > 0:
        return None
    return math.log(value), Interval(low=math.log(interval.low), high=math.log(interval.high))


Array = NDArray[np.float64]


def degrees_of_freedom(share: Matrix) -> Array:
    """Return the equivalent number of clusters of equal size, minus one, [m]; `share` is each
    cluster's share of the weight, [clusters, m]. NaN without any weight."""
    squares = np.square(share).sum(axis=0)
    return np.asarray(1.0 / np.where(squares > 0, squares, np.nan) - 1.0)


def satterthwaite(variances: Matrix, df: Matrix) -> Array:
    """Return the degrees of freedom of a sum of independent estimated variances, [m]; both are by
    part, [parts, m]. NaN without any variance (Satterthwaite 1946)."""
    squares = (np.square(variances) / np.maximum(df, 1.0)).sum(axis=0)
    return np.asarray(np.square(variances.sum(axis=0)) / np.where(squares > 0, squares, np.nan))


def wider(among: int) -> float:
    """Return the factor by which 95% intervals of normal estimates grow so that `among` of them
    hold together (Bonferroni)."""
    return NormalDist().inv_cdf(1.0 - (1.0 - CONFIDENCE) / 2 / among) / Z95


def student(df: Array | float) -> Array:
    """Return the quantile of Student's t for a 95% interval."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.maximum(df, 1.0), 0.5 + CONFIDENCE / 2))


def two_sided(statistic: Array, df: Array) -> Array:
    """Return two-sided p-values of Student's t; NaN for NaN."""
    from scipy.special import stdtr

    return np.asarray(2.0 * stdtr(np.maximum(df, 1.0), -np.abs(statistic)))


def share_interval(some: int, of: int) -> Interval:
    """Return Wilson's interval of a share of independent cases, such as finished requests."""
    quantile = np.array([NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)])
    low, high = wilson(np.array([some / of]), np.array([float(of)]), quantile)
    return Interval(low=float(low[0]), high=float(high[0]))


def exact_interval(some: float, of: float, confidence: float = CONFIDENCE) -> Interval:
    """Return Clopper and Pearson's interval of a share of independent cases, whose coverage is
    never below `confidence`, even if none or all of the cases count.

    In these two cases it is one-sided: 0 of n cases leave a share below 1 - (1 - confidence)^(1/n),
    about 3 / n. Numbers of cases need not be whole, where a design effect divides them. Raises
    ValueError without a case.
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


def poisson_upper_tail(observed: int, expected: float) -> float:
    """Return the probability of at least `observed` events, 1 or more, if `expected` are expected
    (Poisson; the distribution of the sum of many rare events, Le Cam 1960)."""
    from scipy.special import gammainc

    return float(gammainc(observed, expected))
