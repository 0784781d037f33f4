"""Ratios of sums over clusters of requests, with their standard errors and 95% intervals.

Rounds of one request, and requests of one prompt or session, are not independent. A figure is a
ratio r of two sums over clusters, and its variance is that of the jackknife over clusters in closed
form (Cameron and Miller 2015, CV3). If requests belong to two clusters at once that are not nested,
a prompt and a session, the variance is V_a + V_b - V_ab (Cameron, Gelbach and Miller 2011), where
ab are the requests that share both; it is at least the larger of V_a and V_b. The design effect is
the variance over clusters divided by that over requests (Kish 1965). It is above 1 if requests of a
cluster are alike, and may be below 1 if every cluster has requests of each kind.

The quantile of an interval is Student's, with the degrees of freedom that clusters of unequal size
leave. Rates get Wilson's interval at the number of rounds that the variance is worth (Dean and
Pagano 2015), which neither leaves 0..1 nor collapses at the ends. A percentile bootstrap over
clusters is too narrow below about 40 requests: `make calibration` shows both.

A figure has support if no cluster has more than half of the weight, and the clusters are worth at
least FEWEST_CLUSTERS of equal size. Without support, or with an end that is not finite, there is
None instead of an interval: the figure is not known, see `Interval.of`.

Acceptance at depth i is over the rounds that verified at least i tokens and of which i-1 were
accepted, its risk set. The conditional rate divides by their number, and the marginal rate is the
running product of conditional rates (Kaplan and Meier 1958). If every round drafts K tokens, the
product is the plain share of all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Codes, Matrix, ranked
from driftscope.analysis.statistics.intervals import (
    Array,
    Estimate,
    Interval,
    Intervals,
    degrees_of_freedom,
    satterthwaite,
    student,
    wilson,
)
from driftscope.metrics.acceptance import running_product

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
    with one kind, see `ratio_over`."""

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
        return self.at(slice(m))

    def at(self, figures: slice | Codes) -> Ratio:
        """Return some of the figures."""
        return Ratio(
            **{name: getattr(self, name)[..., figures] for name in _BY_FIGURE},
            crossed=_crossed(lambda ratios: ratios[0].at(figures), [self]),
        )

    def minus(self, other: Ratio) -> Ratio:
        """Return the difference of the ratios, whose clusters are the same ones."""
        return Ratio(
            value=self.value - other.value,
            influence=self.influence - other.influence,
            df=np.minimum(self.df, other.df),
            units=self.units + other.units,
            heaviest=np.fmax(self.heaviest, other.heaviest),
            share=np.fmax(self.share, other.share),
            crossed=_crossed(lambda ratios: ratios[0].minus(ratios[1]), [self, other]),
        )

    @property
    def error(self) -> Array:
        """Standard error, [m]; NaN with fewer than two clusters."""
        if self.crossed is None:
            return np.asarray(np.sqrt(self.variance))
        a, b, ab = self.variance, *(ratio.variance for ratio in self.crossed)
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


_BY_FIGURE = ("value", "influence", "df", "units", "heaviest", "share")
"""Fields of a Ratio whose last axis is that of the figures."""


def _crossed(
    make: Callable[[Sequence[Ratio]], Ratio], ratios: Sequence[Ratio]
) -> tuple[Ratio, Ratio] | None:
    """Return what `make` makes of the crossed ratios of both kinds; None if one has none."""
    pairs = [ratio.crossed for ratio in ratios if ratio.crossed is not None]
    if len(pairs) < len(ratios):
        return None
    return make([other for other, _ in pairs]), make([both for _, both in pairs])


def joined(*ratios: Ratio) -> Ratio:
    """Join figures of the same clusters into one Ratio."""
    return Ratio(
        **{
            name: np.concatenate([getattr(ratio, name) for ratio in ratios], axis=-1)
            for name in _BY_FIGURE
        },
        crossed=_crossed(lambda parts: joined(*parts), ratios),
    )


def weighted(ratios: Sequence[Ratio], weights: Sequence[float]) -> Ratio:
    """Return the average of ratios of the same clusters, with constant `weights` whose sum is 1.

    Its degrees of freedom are Satterthwaite's: few clusters decide if they make up most of the
    variance, however many others there are."""

    def average(arrays: Sequence[Matrix]) -> Matrix:
        parts = [weight * array for weight, array in zip(weights, arrays, strict=True)]
        return np.asarray(np.sum(parts, axis=0))

    share = average([np.nan_to_num(ratio.share) for ratio in ratios])
    crossed = _crossed(lambda parts: weighted(parts, weights), ratios)
    return Ratio(
        value=average([ratio.value for ratio in ratios]),
        influence=average([ratio.influence for ratio in ratios]),
        df=np.min([degrees_of_freedom(share), *(ratio.df for ratio in ratios)], axis=0)
        if ratios[0].crossed
        else _df_of_sum(ratios, weights, share),
        units=np.sum([ratio.units for ratio in ratios], axis=0),
        heaviest=_heaviest(share),
        share=share,
        crossed=crossed,
    )


def _df_of_sum(ratios: Sequence[Ratio], weights: Sequence[float], share: Matrix) -> Array:
    """Return the degrees of freedom of an average of ratios, [m]; those of each cluster's `share`
    where no cluster differs."""
    variances = [w * w * ratio.variance for w, ratio in zip(weights, ratios, strict=True)]
    found = satterthwaite(np.array(variances), np.array([ratio.df for ratio in ratios]))
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
        heaviest=_heaviest(share),
        share=share,
    )


def _heaviest(share: Matrix) -> Array:
    """Return the largest share that one cluster has, [m]; NaN without clusters."""
    if not len(share):
        return np.full(share.shape[1], np.nan)
    return np.asarray(share.max(axis=0))


def intervals(ratio: Ratio) -> Intervals | None:
    """Return symmetric intervals; None with fewer than two clusters, which do not show how clusters
    differ. An interval without support is None, too."""
    if len(ratio.influence) < 2:
        return None
    half = student(ratio.df) * ratio.error
    return _pairs(ratio.value - half, ratio.value + half, ratio)


def estimates(ratio: Ratio) -> tuple[Estimate, ...]:
    """Return each figure of a ratio with its interval."""
    spread = intervals(ratio) or (None,) * len(ratio.value)
    return tuple(
        Estimate(value=float(value), interval=interval)
        for value, interval in zip(ratio.value, spread, strict=True)
    )


def rate_intervals(ratio: Ratio) -> Intervals | None:
    """Return intervals of rates in 0..1, by Wilson's formula; None as in `intervals`.

    A rate of 0 or 1 has no variance to show what its rounds are worth: each cluster counts once.
    """
    clusters = len(ratio.influence)
    if clusters < 2:
        return None
    p, variance = ratio.value, np.square(ratio.error)
    single = p * (1 - p)
    worth = np.where((single > 0) & (variance > 0), single / np.where(variance > 0, variance, 1), 0)
    worth = np.where(worth > 0, worth, clusters)
    return _pairs(*wilson(p, worth, student(ratio.df)), ratio)


def ratio_intervals(top: Matrix, bottom: Matrix) -> Intervals | None:
    """Return symmetric intervals of sum(top) / sum(bottom), see `ratio_of`."""
    return intervals(ratio_of(top, bottom))


def _pairs(low: Array, high: Array, ratio: Ratio) -> Intervals:
    clusters = (ratio.df + 1.0).tolist()
    ends = zip(low.tolist(), high.tolist(), clusters, ratio.supported.tolist(), strict=True)
    return tuple(Interval.between(a, b, n) if has else None for a, b, n, has in ends)


Make = Callable[..., Ratio]
"""Function that makes ratios of sums by cluster, such as `ratio_of`."""

MOST_SPANS = 20
"""Largest number of spans of time of a run. Shorter spans would miss what lasts longer, and more of
them would make the quantile hardly smaller."""
LEAST_SPANS = 6
"""Least number of spans that show how spans differ (as `interval` asks of clusters)."""
SPAN_REQUESTS = 4
"""Least mean number of requests that arrive in a span."""
SPAN_LIVES = 2
"""Least length of a span, in typical lives of a request, so that few are served in two spans."""


def ratio_over(
    make: Make, rows: Sequence[Matrix], cluster: Codes, crossed: Codes | None = None
) -> Ratio:
    """Return the ratios that `make` makes of `rows`, [rows, m] each, by `cluster` of each row;
    `crossed` is the other cluster of each row, if they have two."""
    one = make(*(summed(column, cluster) for column in rows))
    if crossed is None:
        return one
    both = pairs_of(cluster, crossed)
    return two_way(
        one, *(make(*(summed(column, code) for column in rows)) for code in (crossed, both))
    )


def two_way(one: Ratio, other: Ratio, both: Ratio) -> Ratio:
    """Return the ratios with the variance over two kinds of clusters; `both` is over their
    intersections. Influences are those of `one`."""
    return replace(
        one,
        crossed=(other, both),
        df=np.fmin(one.df, other.df),
        heaviest=np.fmax(one.heaviest, other.heaviest),
    )


def summed(rows: Matrix, cluster: Codes) -> Matrix:
    """Return the sums of `rows`, [rows, m], over each cluster in order of its number; the rows
    themselves if each is a cluster of its own, in this order."""
    if len(cluster) < 2 or (np.diff(cluster) > 0).all():
        return rows
    number, at = ranked(cluster)
    out = np.zeros((len(number), *rows.shape[1:]), dtype=rows.dtype)
    np.add.at(out, at, rows)
    return out


def pairs_of(a: Codes, b: Codes) -> Codes:
    """Return a number for each pair of clusters, [rows]."""
    return np.asarray(a * (int(b.max(initial=0)) + 1) + b, dtype=np.int64)


def nested(inner: Codes, outer: Codes) -> bool:
    """Whether every cluster of `inner` lies within one cluster of `outer`, [rows] each."""
    return len(np.unique(pairs_of(inner, outer))) == len(np.unique(inner))


def design_effect(over_clusters: Ratio, over_requests: Ratio) -> float | None:
    """Return the variance of the first figure over clusters over that over requests; None if it is
    not known."""
    by_cluster, by_request = (float(ratio.error[0]) for ratio in (over_clusters, over_requests))
    known = np.isfinite(by_cluster) and np.isfinite(by_request) and by_request > 0
    return (by_cluster / by_request) ** 2 if known else None


def rate_over_clusters(
    top: NDArray[np.int64],
    bottom: NDArray[np.int64],
    cluster: Codes | None = None,
    crossed: Codes | None = None,
) -> tuple[float, Interval | None]:
    """Return sum(top) / sum(bottom), [rows] each, and its interval as a rate, over the `cluster` of
    each row or over rows, and over its other cluster if it is `crossed`; 0 and None if every bottom
    is 0."""
    used = bottom > 0
    if not used.any():
        return 0.0, None
    code = np.arange(len(top)) if cluster is None else cluster
    rows = [column[used, None].astype(np.float64) for column in (top, bottom)]
    ratio = ratio_over(ratio_of, rows, code[used], None if crossed is None else crossed[used])
    spread = rate_intervals(ratio)
    return float(ratio.value[0]), spread[0] if spread else None


def spans_of(arrival_s: Matrix, life_s: Matrix) -> Codes | None:
    """Return the span of time in which each request arrived, [requests], spans being numbered and
    holding equally many requests; None if the run is too short for LEAST_SPANS.

    Requests that are served at once share their steps, and whatever else the machine does, so that
    their times are alike whoever asked them. `life_s` is the time from arrival to end.
    """
    known = np.isfinite(arrival_s) & np.isfinite(life_s)
    if not known.any():
        return None
    life = float(np.median(life_s[known]))
    whole = float(np.ptp(arrival_s[known])) + life
    by_length = int(whole / (SPAN_LIVES * life)) if life > 0 else MOST_SPANS
    spans = min(MOST_SPANS, int(known.sum()) // SPAN_REQUESTS, by_length)
    if spans < LEAST_SPANS:
        return None
    place = np.argsort(np.argsort(np.where(known, arrival_s, np.inf), kind="stable"))
    return np.asarray(place * spans // len(place), dtype=np.int64)


def mean_time_interval(
    values: Matrix, spans: Codes | None, cluster: Codes | None = None, crossed: Codes | None = None
) -> Interval | None:
    """Return the interval of the mean of a time of each request, [requests]: that of
    `mean_interval`, or the one over `spans` of time if it is wider."""
    by_cluster = mean_interval(values, cluster, crossed)
    by_span = None if spans is None else mean_interval(values, spans)
    if by_cluster is None or by_span is None:
        return by_cluster
    return max(by_cluster, by_span, key=lambda interval: interval.high - interval.low)


def mean_interval(
    values: Matrix, cluster: Codes | None = None, crossed: Codes | None = None
) -> Interval | None:
    """Return the interval of the mean of one value per request, [requests], over the `cluster` of
    each or over requests, and over its other cluster if it is `crossed`; NaN values are left
    out."""
    is_finite = np.isfinite(values)
    code = np.arange(len(values)) if cluster is None else cluster
    known = values[is_finite][:, None]
    other = None if crossed is None else crossed[is_finite]
    spread = intervals(ratio_over(ratio_of, (known, np.ones_like(known)), code[is_finite], other))
    return spread[0] if spread else None


def marginal_ratio(accepted: Matrix, at_risk: Matrix, verified: Matrix) -> Ratio:
    """Return the marginal rate at each depth; sums are by cluster, [clusters, K] each.

    `accepted`: rounds with at least i tokens accepted; `at_risk`: rounds in which token i could be
    accepted; `verified`: rounds that verified at least i tokens, whose shares give the degrees of
    freedom.
    """
    top, bottom = accepted.sum(axis=0), at_risk.sum(axis=0)
    value = running_product(top, bottom)
    left_out = running_product(top - accepted, bottom - at_risk)
    units = verified.sum(axis=0)
    share = verified / np.where(units > 0, units, np.nan)
    return Ratio(
        value=value,
        influence=np.where(share < 1, value - left_out, np.nan),
        df=degrees_of_freedom(share),
        units=units,
        heaviest=_heaviest(share),
        share=share,
    )


FEWEST_PAIRS = 5
"""Smallest number of pairs for an interval: with fewer, a variance over prompts is meaningless."""
MOST_APART = 100.0
"""Largest factor from the ratio to the upper end of its interval; beyond it there is no interval,
because a ratio that is only known within a factor of 100 is not known."""

PairSums = Mapping[str, tuple[float, float]]
"""Numerator and denominator of a mean, such as tokens and rounds, by pairing key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatio:
    """Ratio of a mean in one condition, or run, to that in another."""

    value: float
    interval: Interval | None
    """95% interval; None with fewer than FEWEST_PAIRS pairs, or without support."""
    pairs: int

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1."""
        return self.interval is not None and (self.interval.low > 1 or self.interval.high < 1)


def paired_ratio(a: PairSums, b: PairSums) -> PairedRatio | None:
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
    return PairedRatio(value=value, interval=_interval(value, ours, theirs), pairs=len(keys))


def _interval(value: float, ours: Ratio, theirs: Ratio) -> Interval | None:
    n = len(ours.influence)
    if n < FEWEST_PAIRS or value <= 0:
        return None
    moved = ours.influence / ours.value - theirs.influence / theirs.value
    error = math.sqrt((n - 1) / n * float(np.square(moved).sum()))
    half = float(student(np.minimum(ours.df, theirs.df))[0]) * error
    if not (half < math.log(MOST_APART) and ours.supported[0] and theirs.supported[0]):
        return None
    return Interval.between(value * math.exp(-half), value * math.exp(half))
