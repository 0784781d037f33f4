"""Ratios of sums over clusters of requests, with their standard error.

Rounds of one request, and requests of one prompt or session, are not independent. A figure is a
ratio r of two sums over clusters, and its variance is that of the jackknife over clusters in closed
form (Cameron and Miller 2015, CV3).

A figure has support if no cluster has more than half of the weight, and the clusters are worth at
least FEWEST_CLUSTERS of equal size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.intervals.degrees_of_freedom import (
    Array,
    degrees_of_freedom,
    satterthwaite,
)

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


def heaviest_of(share: Matrix) -> Array:
    """Return the largest share that one cluster has, [m]; NaN without clusters."""
    if not len(share):
        return np.full(share.shape[1], np.nan)
    return np.asarray(share.max(axis=0))
