"""Degrees of freedom of variances over clusters, and Student's t with them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.intervals.interval import CONFIDENCE

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


def student(df: Array | float) -> Array:
    """Return the quantile of Student's t for a 95% interval."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.maximum(df, 1.0), 0.5 + CONFIDENCE / 2))


def two_sided(statistic: Array, df: Array) -> Array:
    """Return two-sided p-values of Student's t; NaN for NaN."""
    from scipy.special import stdtr

    return np.asarray(2.0 * stdtr(np.maximum(df, 1.0), -np.abs(statistic)))
