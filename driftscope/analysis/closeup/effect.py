"""Effect of drift on acceptance, with one point per request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Codes
from driftscope.analysis.statistics.clusters import summed
from driftscope.analysis.statistics.intervals.cluster_ratio import FEWEST_CLUSTERS, MOST_WEIGHT
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.metrics.association import moments, slope

ENOUGH_REQUESTS = 10
"""Smallest number of requests for which a slope is given; with fewer, one request decides it."""
NO_SPREAD = 1e-4
"""Range of the drift, relative to its size, below which requests count as equal: a trace keeps a
number to 2^-17 only, and a slope over less than ten times that is noise."""
MAX_POINTS = 300
"""Points kept for the picture, taken evenly from all requests in order of drift."""
_MAX_CLUSTERS = 2000
"""Number of requests above which they are resampled in groups."""
_BLOCK = 100
RESAMPLES = 1000
"""Number of resamples, enough for a 95% interval: the percentile's own error is then about 0.7 % of
coverage."""
SEED = 20260511

Values = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effect of one measure of drift on the acceptance length."""

    measure: str
    """Name of the drift metric, as in `driftscope.metrics`."""
    requests: int
    """Number of requests that have both numbers."""
    slope: float | None
    """Tokens per round for one unit of drift; None with too few requests or no spread."""
    interval: Interval | None
    drift: tuple[float, ...]
    """Drift of the points kept, lowest first."""
    mean_length: tuple[float, ...]
    rounds: tuple[int, ...]


def effect_of(
    measure: str,
    drift: Values,
    mean_length: Values,
    rounds: Values,
    cluster: Codes | None = None,
) -> Effect | None:
    """Return the effect over requests from arrays of [requests], with an interval over the
    `cluster` of each; None if no request has both numbers."""
    known = np.isfinite(drift) & np.isfinite(mean_length) & (rounds > 0)
    if not known.any():
        return None
    x, y, weight = drift[known], mean_length[known], rounds[known]
    order = np.argsort(x, kind="stable")
    kept = order[np.unique(np.linspace(0, len(x) - 1, min(len(x), MAX_POINTS)).astype(np.int64))]
    code = np.arange(len(drift)) if cluster is None else cluster
    estimate, interval = _slope(x, y, weight, code[known])
    return Effect(
        measure=measure,
        requests=len(x),
        slope=estimate,
        interval=interval,
        drift=_short(x[kept]),
        mean_length=_short(y[kept]),
        rounds=tuple(int(n) for n in weight[kept]),
    )


def _slope(
    x: Values, y: Values, weight: Values, cluster: Codes
) -> tuple[float | None, Interval | None]:
    if len(x) < ENOUGH_REQUESTS or np.ptp(x) <= NO_SPREAD * np.abs(x).max():
        return None, None
    sums = moments(x - x.mean(), y - y.mean(), weight)
    estimate = float(slope(sums.sum(axis=0)))
    if not np.isfinite(estimate):
        return None, None
    of_cluster = summed(np.asarray(sums, dtype=np.float64), cluster)
    again = slope(_resampled(of_cluster))
    heaviest = summed(weight.astype(np.float64)[:, None], cluster).max()
    if (
        heaviest > MOST_WEIGHT * weight.sum()
        or len(of_cluster) < FEWEST_CLUSTERS
        or not np.isfinite(again).any()
    ):
        return estimate, None
    low, high = np.nanpercentile(again, [2.5, 97.5])
    return estimate, Interval.of(float(low), float(high))


def _resampled(sums: Values) -> Values:
    """Return sums over as many requests as there are, drawn with replacement, [resamples, m]."""
    groups = min(len(sums), _MAX_CLUSTERS)
    grouped = np.zeros((groups, sums.shape[1]))
    np.add.at(grouped, np.arange(len(sums)) % groups, sums)
    random = np.random.RandomState(SEED)
    even = np.full(groups, 1.0 / groups)
    drawn = [random.multinomial(groups, even, size=_BLOCK) for _ in range(RESAMPLES // _BLOCK)]
    return np.concatenate([times.astype(np.float64) @ grouped for times in drawn])


def _short(values: Values) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in values)
