"""Joint test of several differences between two runs, and corrections for several tests.

Depths of one run are not independent, and all are tested together. The statistic is the largest |t|
over them. Its reference distribution comes from the same requests with their runs exchanged: the
sign of each pair's difference is drawn (Romano 1989), or, without pairs, requests are dealt anew to
the two runs (Chung and Romano 2013). A depth at which one run never accepts is tested like any
other.

Values of few clusters may have most of the weight, as those of a rare label do at a common mix of
labels; the exchange spreads them over both runs. Without pairs, |t| is therefore reduced by the
ratio of Student's quantiles at Welch's degrees of freedom and at those of all requests.

A cluster's value is the ratio plus n times what the cluster adds to it: the mean of the values is
the ratio, and their spread is its variance over clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Matrix
from driftscope.analysis.statistics.intervals import CONFIDENCE, Array, satterthwaite, two_sided
from driftscope.analysis.statistics.ratio import Ratio

DRAWS = 999
"""Number of random exchanges: p-values are multiples of 1 / 1000."""
SEED = 20_260_511
LEAST = 6
"""Smallest number of pairs, or of requests of either run, for a test: with five pairs, the most
extreme signs already have a probability of 2 / 32 = 0.06."""
_AT_ONCE = 64
"""Number of exchanges that are in memory together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joint:
    """Result of the joint test; differences are the second run minus the first, [m] each."""

    gap: Array
    error: Array
    """Standard error; 0 if all requests agree."""
    p: Array
    """Adjusted p-value: calling every figure with a p below 0.05 different errs in one of 20
    comparisons of equal runs, however many figures there are. NaN if nothing can be tested."""
    critical: Array
    """Half-widths of simultaneous intervals in standard errors: in one of 20 comparisons of equal
    runs some |t| exceeds its own. NaN if nothing is tested."""


def joint(a: Ratio, b: Ratio, *, paired: bool) -> Joint:
    """Test b - a, figure by figure; if `paired`, rows of the influences are pairs."""
    known = _usable_figures(a) & _usable_figures(b)
    units = a.units + b.units
    tops = np.nan_to_num(a.value) * a.units + np.nan_to_num(b.value) * b.units
    same = np.asarray(tops / np.where(units > 0, units, np.nan))
    first, second = (_null_values(ratio, same, known) for ratio in (a, b))
    if paired:
        return _tested(_Signs(second - first), b.minus(a).factor)
    return _tested(
        _Deals(first, second), np.fmax(a.factor, b.factor), gap_of(a, b, paired=False)[2]
    )


def gap_of(a: Ratio, b: Ratio, *, paired: bool) -> tuple[Array, Array, Array]:
    """Return b - a, its standard error and degrees of freedom (Welch's without pairs), [m] each."""
    if paired:
        gap = b.minus(a)
        return gap.value, gap.error, gap.df
    variances = np.square([a.error, b.error])
    df = satterthwaite(variances, np.array([a.df, b.df]))
    return b.value - a.value, np.sqrt(variances.sum(axis=0)), np.where(np.isfinite(df), df, 1.0)


def departure(ratio: Ratio) -> Joint:
    """Test whether the figures of one run differ from 0, by random signs of its clusters."""
    known = _usable_figures(ratio)
    value, influence = np.where(known, ratio.value, 0), np.where(known, ratio.influence, 0)
    return _tested(
        _Signs(np.asarray(value + (len(influence) - 1) * (influence - influence.mean(axis=0)))),
        ratio.factor,
    )


def _usable_figures(ratio: Ratio) -> NDArray[np.bool_]:
    """Return the figures for which every cluster's influence is known and no cluster decides,
    [m]."""
    known = np.isfinite(ratio.value) & np.isfinite(ratio.influence).all(axis=0)
    return np.asarray(known & ratio.supported)


def _null_values(ratio: Ratio, same: Array, known: NDArray[np.bool_]) -> Matrix:
    """Return values of the clusters with the ratio as mean, [clusters, m], as they are if both runs
    have the ratio `same`; 0 in all clusters if it is not `known`.

    A cluster's residual is taken from `same`, so that a chance difference of the runs is not in the
    residuals of all clusters, weighted by their sizes (the null is imposed, as in the score
    bootstrap of Kline and Santos 2012).
    """
    own = ratio.influence * (1.0 - ratio.share) + (ratio.value - same) * ratio.share
    return np.where(known, same + len(own) * np.where(known, own, 0.0), 0.0)


class _Signs:
    """Differences of pairs, [pairs, m], whose signs are drawn at random."""

    def __init__(self, differences: Matrix) -> None:
        self._of, self._squares = differences, np.square(differences).sum(axis=0)
        self.clusters = len(differences)
        self.dealt_df = float(self.clusters - 1)

    def observed(self) -> tuple[Array, Array]:
        """Return the observed differences and their standard errors."""
        gap = self._of.mean(axis=0)
        return gap, self._error(gap)

    def exchanged(self, random: np.random.Generator, draws: int) -> Array:
        """Return |t| for random signs, [draws, m]."""
        signs = random.integers(0, 2, (draws, self.clusters)) * 2.0 - 1.0
        gap = signs @ self._of / self.clusters
        return _statistic(gap, self._error(gap))

    def _error(self, gap: Array) -> Array:
        n = self.clusters
        left = self._squares - n * np.square(gap)
        return np.asarray(np.sqrt(np.maximum(left, 0.0) / max(n * (n - 1), 1)))


class _Deals:
    """Values of two groups of requests, [requests, m] each, which are dealt anew at random."""

    def __init__(self, first: Matrix, second: Matrix) -> None:
        both = np.vstack([first, second])
        self._sizes, self._first, self._second = (len(first), len(second)), first, second
        self._values = np.hstack([both, np.square(both)])
        self._sum = self._values.sum(axis=0)
        self.clusters = min(self._sizes)
        self.dealt_df = float(sum(self._sizes) - 2)

    def observed(self) -> tuple[Array, Array]:
        """Return the observed differences and their standard errors."""
        second = np.hstack([self._second, np.square(self._second)]).sum(axis=0)
        return self._between(second[None])

    def exchanged(self, random: np.random.Generator, draws: int) -> Array:
        """Return |t| for random deals, [draws, m]."""
        n = sum(self._sizes)
        in_second = random.permuted(np.tile(np.arange(n) >= self._sizes[0], (draws, 1)), axis=1)
        return _statistic(*self._between(in_second.astype(np.float64) @ self._values))

    def _between(self, second: Matrix) -> tuple[Array, Array]:
        """Return differences and errors, [draws, m], from the sums of the second group's values and
        squares."""
        m = second.shape[1] // 2
        means, variances = [], []
        for sums, n in zip((self._sum - second, second), self._sizes, strict=True):
            mean = sums[:, :m] / n
            left = np.maximum(sums[:, m:] - n * np.square(mean), 0.0)
            means.append(mean)
            variances.append(left / max(n * (n - 1), 1))
        gap, error = means[1] - means[0], np.sqrt(variances[0] + variances[1])
        return np.squeeze(gap), np.squeeze(error)


def _statistic(gap: Array, error: Array) -> Array:
    """Return |t|; 0 if nothing differs, infinite if every request differs by the same amount."""
    has_error = error > 0
    t = np.abs(gap) / np.where(has_error, error, 1.0)
    return np.where(has_error, t, np.where(np.abs(gap) > 0, np.inf, 0.0))


def _tested(exchange: _Signs | _Deals, factor: Array, df: Array | None = None) -> Joint:
    """Test the observed differences; `factor` widens their errors, [m], see `Ratio.factor`, and
    `df` are their degrees of freedom, if they can be fewer than those of the exchange."""
    gap, error = exchange.observed()
    gap, error = np.atleast_1d(gap), np.atleast_1d(error) * factor
    if exchange.clusters < LEAST or not (error > 0).any():
        none = np.full(len(gap), np.nan)
        return Joint(gap=gap, error=error, p=none, critical=none)
    largest = np.concatenate(list(_largest(exchange)))
    critical = float(np.quantile(largest, CONFIDENCE, method="higher"))
    if df is None:
        heavier = np.ones(len(gap))
    else:
        # How much further out Student's t with `df` degrees of freedom has the tail
        # that t with `dealt` has at `critical`, [m]; at least 1.
        from scipy.special import stdtrit

        tail = float(two_sided(np.asarray(critical), np.asarray(exchange.dealt_df)))
        quantile = stdtrit(np.clip(df, 1.0, exchange.dealt_df), 1.0 - tail / 2)
        heavier = np.where(np.isfinite(quantile), quantile / critical, 1.0)
    t = _statistic(gap, error) / heavier
    p = (1 + (largest[:, None] >= t - 1e-9).sum(axis=0)) / (DRAWS + 1)
    some = (error > 0) | (np.abs(gap) > 0)
    return Joint(gap=gap, error=error, p=np.where(some, p, np.nan), critical=critical * heavier)


def _largest(exchange: _Signs | _Deals) -> Iterator[NDArray[np.float64]]:
    """Yield the largest |t| of each random exchange, in batches."""
    random = np.random.default_rng(SEED)
    for first in range(0, DRAWS, _AT_ONCE):
        draws = min(_AT_ONCE, DRAWS - first)
        yield exchange.exchanged(random, draws).reshape(draws, -1).max(axis=1)


ALPHA = 0.05
"""Probability that at least one of the differences called so is none."""


def holm(p: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted by Holm's step-down rule (Holm 1979): calling those below ALPHA
    keeps the probability of a single false call below ALPHA, however the tests depend on each
    other."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return tuple(adjusted.tolist())
