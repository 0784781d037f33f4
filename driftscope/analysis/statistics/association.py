"""Linear relation of an outcome to a measure within strata, with errors by cluster.

The outcome y is 0 or 1, a stratum is one request at one depth. Strata take out everything that is
equal in a request: its prompt, label, sampling, length. The model is the linear probability model

    y = stratum + b x + covariates' g + error,

fitted on deviations from the strata's means (Wooldridge 2010, 10.5). Strata whose outcome is
constant count as well: leaving them out would select on the outcome, and inflate b (as it does not
in a conditional logit, whose b is no difference of rates). The error of b is the
jackknife over clusters (Cameron and Miller 2015, CV3), in closed form from each cluster's sums of
products, and its quantile Student's, with the degrees of freedom that clusters of unequal leverage
leave. With few clusters a sign-flip test on the clusters' scores has to agree (the restricted wild
cluster bootstrap of Cameron, Gelbach and Miller 2008, on the partialled-out scores).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import ranked
from driftscope.analysis.statistics.intervals import Interval, student, two_sided
from driftscope.analysis.statistics.permutation import ALPHA

FEWEST_CLUSTERS = 10
"""Smallest number of clusters for an estimate."""
FEWEST_ROWS = 200
"""Smallest number of rows in strata in which both the measure and the outcome vary."""
MANY_CLUSTERS = 30
"""Number of clusters from which on Student's quantile needs no second test."""
FLIPS = 999
"""Number of random signs of the scores."""
SEED = 20261124
MARGIN = 0.02
"""Equivalence margin: a change of the outcome by less than this, for one standard deviation of the
measure, counts as none. driftscope's own bound."""
Array = NDArray[np.float64]
Codes = NDArray[np.int64]


class Answer(StrEnum):
    """Answer to whether the outcome goes with the measure."""

    LESS = "less"
    """The outcome is less frequent where the measure is larger."""
    MORE = "more"
    NO = "no"
    """A relation as large as MARGIN is excluded."""
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """Relation of the outcome to one standard deviation of the measure within strata."""

    per_sd: float
    """Change of the outcome's frequency."""
    interval: Interval
    """95% interval of `per_sd`."""
    sd: float
    """Standard deviation of the measure within strata, in the measure's unit."""
    rows: int
    """Rows in strata in which the measure varies."""
    clusters: int
    p: float
    """p-value of no relation; the larger one of two with few clusters."""

    def answer(self, adjusted_p: float | None = None) -> Answer:
        """Return the answer; `adjusted_p` replaces `p` if several questions are asked together."""
        p = self.p if adjusted_p is None else adjusted_p
        if p < ALPHA and self.interval.excludes_zero():
            return Answer.LESS if self.per_sd < 0 else Answer.MORE
        if self.interval.low > -MARGIN and self.interval.high < MARGIN:
            return Answer.NO
        return Answer.CANNOT_TELL

    @property
    def wanted_clusters(self) -> int:
        """Number of clusters with which the interval would be about as wide as MARGIN."""
        half = (self.interval.high - self.interval.low) / 2
        return int(np.ceil(self.clusters * max((half / MARGIN) ** 2, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of the regression, arrays of [rows] each."""

    cluster: Codes
    stratum: Codes
    y: Array
    """Outcome, 0 or 1."""
    x: Array
    """Measure; NaN leaves a row out."""
    covariates: Array
    """Other variables, [rows, m]."""


def association(rows: Rows, *, least_sd: float = 0.0) -> Association | None:
    """Return the relation of `y` to `x`; None if there are too few rows or clusters in which both
    vary, or if the measure varies by no more than `least_sd`."""
    both = _varies(rows, rows.x) & _varies(rows, rows.y)
    if len(np.unique(rows.cluster[both])) < FEWEST_CLUSTERS or both.sum() < FEWEST_ROWS:
        return None
    kept = _varies(rows, rows.x)
    rows = Rows(**{column.name: getattr(rows, column.name)[kept] for column in fields(rows)})
    clusters, cluster = ranked(rows.cluster)
    # Values less the mean of their stratum, [rows, m].
    values = np.column_stack([rows.x, rows.covariates, rows.y])
    _, code = ranked(rows.stratum)
    size = np.bincount(code).astype(np.float64)
    within = np.empty_like(values)
    for at in range(values.shape[1]):
        mean = np.bincount(code, weights=values[:, at]) / size
        within[:, at] = values[:, at] - mean[code]
    freedom = len(within) - len(np.unique(rows.stratum))
    sd = float(np.sqrt(np.square(within[:, 0]).sum() / max(freedom, 1)))
    if not sd > least_sd:
        return None
    x, others, y = within[:, 0] / sd, within[:, 1:-1], within[:, -1]
    x, y = _residual(x, others), _residual(y, others)
    squares = np.bincount(cluster, weights=x * x, minlength=len(clusters))
    products = np.bincount(cluster, weights=x * y, minlength=len(clusters))
    share = squares / squares.sum()
    if share.max() > 0.5:
        return None
    estimate = float(products.sum() / squares.sum())
    without = (products.sum() - products) / (squares.sum() - squares)
    n = len(clusters)
    error = float(np.sqrt((n - 1) / n * np.square(without - estimate).sum()))
    df = 1.0 / float(np.square(share).sum()) - 1.0
    half = float(student(df)) * error
    interval = Interval.of(estimate - half, estimate + half)
    if interval is None or not error:
        return None
    p = float(two_sided(np.array([estimate / error]), np.array([df]))[0])
    if n < MANY_CLUSTERS:
        scores = products.astype(np.float64)
        # Share of random signs under which the clusters' scores add up to as much.
        signs = np.random.RandomState(SEED).choice((-1.0, 1.0), size=(FLIPS, len(scores)))
        more = np.abs(signs @ scores) >= abs(scores.sum()) * (1 - 1e-12)
        p = max(p, float((1 + more.sum()) / (1 + FLIPS)))
    return Association(per_sd=estimate, interval=interval, sd=sd, rows=len(rows.y), clusters=n, p=p)


def _varies(rows: Rows, values: Array) -> NDArray[np.bool_]:
    """Return the rows with finite numbers, of strata in which `values` vary among these."""
    known = np.isfinite(rows.x) & np.isfinite(rows.covariates).all(axis=1)
    _, stratum = ranked(rows.stratum)
    n = int(stratum.max(initial=-1)) + 1
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, stratum[known], values[known])
    np.maximum.at(high, stratum[known], values[known])
    return np.asarray(known & (high > low)[stratum])


def _residual(values: Array, others: Array) -> Array:
    """Return what is left of `values` after a least-squares fit of `others`."""
    if not others.shape[1]:
        return values
    fit, *_ = np.linalg.lstsq(others, values, rcond=None)
    return np.asarray(values - others @ fit)
