"""Ratios over clusters of requests, and what the clusters are worth.

Requests of one cluster, such as those of one prompt, are not independent, so a variance is taken
over the sums of clusters. If requests belong to two clusters at once that are not nested, a prompt
and a session, the variance is V_a + V_b - V_ab (Cameron, Gelbach and Miller 2011), where ab are the
requests that share both; it is at least the larger of V_a and V_b.

The design effect is the variance over clusters divided by that over requests (Kish 1965). It is
above 1 if requests of a cluster are alike, and may be below 1 if every cluster has requests of each
kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Codes, Matrix, ranked
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals, rate_intervals
from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio, ratio_of
from driftscope.analysis.statistics.intervals.interval import Interval

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
    one = make(*(summed(each, cluster) for each in rows))
    if crossed is None:
        return one
    both = pairs_of(cluster, crossed)
    return two_way(one, *(make(*(summed(each, code) for each in rows)) for code in (crossed, both)))


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
    by_cluster, by_request = (float(each.error[0]) for each in (over_clusters, over_requests))
    known = np.isfinite(by_cluster) and np.isfinite(by_request) and by_request > 0
    return (by_cluster / by_request) ** 2 if known else None


def intraclass_correlation(top: Matrix, bottom: Matrix, cluster: Codes) -> float | None:
    """Return the correlation of two requests of one cluster, for residuals of top / bottom, [rows]
    each; None without a cluster of two requests or without any variance.

    It is the estimator of the analysis of variance (Donner 1986, one-way, unequal sizes), and may
    be below 0.
    """
    number, at = ranked(cluster)
    n, groups = len(top), len(number)
    if groups < 2 or groups == n:
        return None
    size = np.bincount(at).astype(np.float64)
    residual = top / bottom - top.sum() / bottom.sum()
    mean = np.bincount(at, residual) / size
    between = (size * np.square(mean - residual.mean())).sum() / (groups - 1)
    within = np.square(residual - mean[at]).sum() / (n - groups)
    typical = (n - np.square(size).sum() / n) / (groups - 1)
    whole = between + (typical - 1) * within
    return float((between - within) / whole) if whole > 0 else None


def rate_over_clusters(
    top: NDArray[np.int64],
    bottom: NDArray[np.int64],
    cluster: Codes | None = None,
    crossed: Codes | None = None,
) -> tuple[float, Interval | None]:
    """Return sum(top) / sum(bottom), [rows] each, and its interval as a rate, over the `cluster` of
    each row or over rows, and over its other cluster if it is `crossed`; 0 and None if every bottom
    is 0."""
    there = bottom > 0
    if not there.any():
        return 0.0, None
    code = np.arange(len(top)) if cluster is None else cluster
    rows = [each[there, None].astype(np.float64) for each in (top, bottom)]
    ratio = ratio_over(ratio_of, rows, code[there], None if crossed is None else crossed[there])
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
    return max(by_cluster, by_span, key=lambda each: each.high - each.low)


def mean_interval(
    values: Matrix, cluster: Codes | None = None, crossed: Codes | None = None
) -> Interval | None:
    """Return the interval of the mean of one value per request, [requests], over the `cluster` of
    each or over requests, and over its other cluster if it is `crossed`; NaN values are left
    out."""
    there = np.isfinite(values)
    code = np.arange(len(values)) if cluster is None else cluster
    known = values[there][:, None]
    other = None if crossed is None else crossed[there]
    spread = intervals(ratio_over(ratio_of, (known, np.ones_like(known)), code[there], other))
    return spread[0] if spread else None
