"""95% intervals of ratios over clusters.

The quantile is Student's, with the degrees of freedom that clusters of unequal size leave. Rates
get Wilson's interval at the number of rounds that the variance is worth (Dean and Pagano 2015),
which neither leaves 0..1 nor collapses at the ends. A percentile bootstrap over clusters is too
narrow below about 40 requests: `make calibration` shows both.

Without support (see `cluster_ratio`), or with an end that is not finite, there is None instead of
an interval: the figure is not known, see `Interval.of`.
"""

from __future__ import annotations

import numpy as np

from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio, ratio_of
from driftscope.analysis.statistics.intervals.degrees_of_freedom import Array, student
from driftscope.analysis.statistics.intervals.independent_cases import wilson
from driftscope.analysis.statistics.intervals.interval import Interval, Intervals


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
    return _pairs(*wilson(p, worth, student(ratio.df)), ratio)


def ratio_intervals(top: Matrix, bottom: Matrix) -> Intervals | None:
    """Return symmetric intervals of sum(top) / sum(bottom), see `ratio_of`."""
    return intervals(ratio_of(top, bottom))


def _pairs(low: Array, high: Array, ratio: Ratio) -> Intervals:
    clusters = (ratio.df + 1.0).tolist()
    ends = zip(low.tolist(), high.tolist(), clusters, ratio.supported.tolist(), strict=True)
    return tuple(Interval.of(a, b, n) if has else None for a, b, n, has in ends)
