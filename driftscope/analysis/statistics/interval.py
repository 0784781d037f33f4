"""95% intervals of ratios of sums over clusters of requests: rounds of one request, and requests of
one prompt or session, are not independent.

A figure is a ratio r of two sums over clusters. Its variance is that of the jackknife
over clusters in closed form (Cameron and Miller 2015, CV3), and its quantile is Student's, with the
degrees of freedom that clusters of unequal size leave. Rates get Wilson's interval at the number of
rounds that the variance is worth (Dean and Pagano 2015), which neither leaves 0..1 nor collapses at
the ends. A percentile bootstrap over clusters is too narrow below about 40 requests: `make
calibration` shows both.

An interval has support if both ends are finite, no cluster has more than half of the weight, and
the clusters are worth at least FEWEST_CLUSTERS of equal size. Without support there is None instead
of an interval: the figure is not known, see `Interval.of`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Matrix

CONFIDENCE = 0.95
FEW_CLUSTERS = 30
"""Effective number of clusters below which an interval is trusted less: the usual rule of thumb for
a variance over clusters."""
FEW_REQUESTS = FEW_CLUSTERS
"""FEW_CLUSTERS where requests are counted."""
LOW_CLUSTERS = 10
"""Effective number of clusters below which an interval is trusted little."""
FEWEST_CLUSTERS = 5
"""Effective number of clusters below which there is no interval: the variance over fewer is itself
not known."""
_ROUNDING = 1e-6
MOST_WEIGHT = 0.5 + 1e-9
"""Largest share of the weight that one cluster may have: above it, an interval is about that one
cluster. It exceeds one half by a rounding error."""
Array = NDArray[np.float64]


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


def fewer(a: float | None, b: float | None) -> float | None:
    """Return the smaller number of clusters; the known one if the other is None."""
    return min((each for each in (a, b) if each is not None), default=None)


Intervals = tuple[Interval | None, ...]
"""Intervals of several figures; None for a figure without support."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratio:
    """Ratios of sums over clusters, [m], and the influence of each cluster on them."""

    value: Array
    """Values of the ratios; NaN if the denominator is 0."""
    influence: Matrix
    """Jackknife influences, [clusters, m]; `error` is the scaled root of their sum of squares."""
    df: Array
    """Degrees of freedom: the equivalent number of clusters of equal size, minus one."""
    units: Array
    """Sums of the denominators."""
    heaviest: Array
    """Largest share of the denominator that one cluster has, [m]."""
    share: Matrix
    """Each cluster's share of the denominator, [clusters, m]; NaN if it is 0."""
    crossed: tuple[Ratio, Ratio] | None = None
    """Ratios over the other kind of clusters, and over the intersections of both; None
    with one kind, see `driftscope.analysis.statistics.clusters`."""

    @property
    def supported(self) -> NDArray[np.bool_]:
        """Whether no cluster has more than half of the weight, and there are enough clusters,
        [m]."""
        enough = self.df + 1.0 >= FEWEST_CLUSTERS - _ROUNDING
        return np.asarray((self.heaviest <= MOST_WEIGHT) & enough)

    @property
    def variance(self) -> Array:
        """Return the jackknife variance over this kind of clusters alone, [m]; NaN with fewer than
        two clusters."""
        n = len(self.influence)
        if n < 2:
            return np.full(len(self.value), np.nan)
        return np.asarray((n - 1) / n * np.square(self.influence).sum(axis=0))

    def first(self, m: int) -> Ratio:
        """Return the first `m` figures."""
        return Ratio(
            value=self.value[:m],
            influence=self.influence[:, :m],
            df=self.df[:m],
            units=self.units[:m],
            heaviest=self.heaviest[:m],
            share=self.share[:, :m],
            crossed=None
            if self.crossed is None
            else (self.crossed[0].first(m), self.crossed[1].first(m)),
        )

    def minus(self, other: Ratio) -> Ratio:
        """Return the difference of the ratios, whose clusters are the same ones."""
        crossed = None
        if self.crossed is not None and other.crossed is not None:
            (a, ab), (b, bb) = self.crossed, other.crossed
            crossed = a.minus(b), ab.minus(bb)
        return Ratio(
            value=self.value - other.value,
            influence=self.influence - other.influence,
            df=np.minimum(self.df, other.df),
            units=self.units + other.units,
            heaviest=np.fmax(self.heaviest, other.heaviest),
            share=np.fmax(self.share, other.share),
            crossed=crossed,
        )

    @property
    def error(self) -> Array:
        """Standard error, [m]; NaN with fewer than two clusters."""
        if self.crossed is None:
            return np.asarray(np.sqrt(self.variance))
        a, b, ab = self.variance, *(each.variance for each in self.crossed)
        return np.asarray(np.sqrt(np.fmax(np.fmax(a, b), a + b - ab)))

    @property
    def factor(self) -> Array:
        """Standard error over that of this kind of clusters alone, [m]; 1 with one kind."""
        if self.crossed is None:
            return np.ones(len(self.value))
        variance = self.variance
        known = variance > 0
        factor = self.error / np.sqrt(np.where(known, variance, 1.0))
        return np.where(known, factor, 1.0)


def joined(*ratios: Ratio) -> Ratio:
    """Join figures of the same clusters into one Ratio."""
    return Ratio(
        value=np.concatenate([each.value for each in ratios]),
        influence=np.hstack([each.influence for each in ratios]),
        df=np.concatenate([each.df for each in ratios]),
        units=np.concatenate([each.units for each in ratios]),
        heaviest=np.concatenate([each.heaviest for each in ratios]),
        share=np.hstack([each.share for each in ratios]),
        crossed=None
        if any(each.crossed is None for each in ratios)
        else (
            joined(*(each.crossed[0] for each in ratios if each.crossed)),
            joined(*(each.crossed[1] for each in ratios if each.crossed)),
        ),
    )


def weighted(ratios: Sequence[Ratio], weights: Sequence[float]) -> Ratio:
    """Return the average of ratios of the same clusters, with constant `weights` whose sum is 1.

    Its degrees of freedom are Satterthwaite's: few clusters decide if they make up most of the
    variance, however many others there are."""
    shares = [np.nan_to_num(each.share) for each in ratios]
    share = np.sum([w * each for w, each in zip(weights, shares, strict=True)], axis=0)
    crossed = [each.crossed for each in ratios]
    return Ratio(
        value=np.sum([w * each.value for w, each in zip(weights, ratios, strict=True)], axis=0),
        influence=np.sum(
            [w * each.influence for w, each in zip(weights, ratios, strict=True)], axis=0
        ),
        df=np.min([degrees_of_freedom(share), *(each.df for each in ratios)], axis=0)
        if crossed[0]
        else _df_of_sum(ratios, weights, share),
        units=np.sum([each.units for each in ratios], axis=0),
        heaviest=heaviest_of(share),
        share=share,
        crossed=(
            weighted([each[0] for each in crossed if each], weights),
            weighted([each[1] for each in crossed if each], weights),
        )
        if all(crossed)
        else None,
    )


def _df_of_sum(ratios: Sequence[Ratio], weights: Sequence[float], share: Matrix) -> Array:
    """Return the degrees of freedom of an average of ratios, [m]; those of each cluster's `share`
    where no cluster differs."""
    variances = [w * w * each.variance for w, each in zip(weights, ratios, strict=True)]
    found = satterthwaite(np.array(variances), np.array([each.df for each in ratios]))
    return np.where(np.isfinite(found), found, degrees_of_freedom(share))


def ratio_of(top: Matrix, bottom: Matrix) -> Ratio:
    """Return sum(top) / sum(bottom) per column; both are by cluster, [clusters, m], or `bottom` is
    broadcast."""
    bottom = np.broadcast_to(bottom, top.shape)
    whole = bottom.sum(axis=0)
    safe = np.where(whole > 0, whole, np.nan)
    value = top.sum(axis=0) / safe
    share = bottom / safe
    left = np.where(share < 1, 1 - share, np.nan)
    return Ratio(
        value=value,
        influence=(top - value * bottom) / safe / left,
        df=degrees_of_freedom(share),
        units=whole,
        heaviest=heaviest_of(share),
        share=share,
    )


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


def heaviest_of(share: Matrix) -> Array:
    """Return the largest share that one cluster has, [m]; NaN without clusters."""
    if not len(share):
        return np.full(share.shape[1], np.nan)
    return np.asarray(share.max(axis=0))


def student(df: Array | float) -> Array:
    """Return the quantile of Student's t for a 95% interval."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.maximum(df, 1.0), 0.5 + CONFIDENCE / 2))


def two_sided(statistic: Array, df: Array) -> Array:
    """Return two-sided p-values of Student's t; NaN for NaN."""
    from scipy.special import stdtr

    return np.asarray(2.0 * stdtr(np.maximum(df, 1.0), -np.abs(statistic)))


def intervals(ratio: Ratio) -> Intervals | None:
    """Return symmetric intervals; None with fewer than two clusters, which do not show how clusters
    differ. An interval without support is None, too."""
    if len(ratio.influence) < 2:
        return None
    half = student(ratio.df) * ratio.error
    return _pairs(ratio.value - half, ratio.value + half, ratio)


def rate_intervals(ratio: Ratio) -> Intervals | None:
    """Return intervals of rates in 0..1, by Wilson's formula; None as in `intervals`.

    A rate of 0 or 1 has no variance to show what its rounds are worth: each cluster counts once.
    """
    clusters = len(ratio.influence)
    if clusters < 2:
        return None
    p, variance = ratio.value, np.square(ratio.error)
    apart = p * (1 - p)
    worth = np.where((apart > 0) & (variance > 0), apart / np.where(variance > 0, variance, 1), 0)
    worth = np.where(worth > 0, worth, clusters)
    return _pairs(*_wilson(p, worth, student(ratio.df)), ratio)


def share_interval(some: int, of: int) -> Interval:
    """Return Wilson's interval of a share of independent cases, such as finished requests."""
    quantile = np.array([NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)])
    low, high = _wilson(np.array([some / of]), np.array([float(of)]), quantile)
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


def _wilson(rate: Array, worth: Array, quantile: Array) -> tuple[Array, Array]:
    """Return both ends, [m] each, for rates over `worth` independent cases."""
    t2 = np.square(quantile)
    middle = (rate + t2 / (2 * worth)) / (1 + t2 / worth)
    half = np.sqrt(t2 / worth * (rate * (1 - rate) + t2 / (4 * worth))) / (1 + t2 / worth)
    low, high = np.minimum(middle - half, rate), np.maximum(middle + half, rate)
    return np.clip(low, 0, 1), np.clip(high, 0, 1)


def ratio_intervals(top: Matrix, bottom: Matrix) -> Intervals | None:
    """Return symmetric intervals of sum(top) / sum(bottom), see `ratio_of`."""
    return intervals(ratio_of(top, bottom))


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


def _pairs(low: Array, high: Array, ratio: Ratio) -> Intervals:
    clusters = (ratio.df + 1.0).tolist()
    ends = zip(low.tolist(), high.tolist(), clusters, ratio.supported.tolist(), strict=True)
    return tuple(Interval.of(a, b, n) if has else None for a, b, n, has in ends)
