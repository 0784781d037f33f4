"""Means over recorded chains of quantities that some chains may lack.

A mean is kept as two sums, so that it adds up over requests, files and engines. A chain that was
sampled at the rate r weighs 1 / r (Horvitz and Thompson 1952), so that a rate that changes during a
run leaves the mean unbiased.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import ibis.expr.types as ir

Array = NDArray[np.floating[Any]]


def finite(value: ir.NumericValue) -> ir.BooleanValue:
    """Whether a value is a finite number; null for null. NaN sorts above infinity in SQL."""
    return value.abs() < math.inf


def weighted(value: ir.NumericValue, weight: ir.NumericValue) -> ir.NumericScalar:
    """Return the sum of finite values times their weights: the numerator of a mean."""
    import ibis

    return ibis.ifelse(finite(value), value * weight, ibis.null("float64")).sum()


def weight_of(value: ir.NumericValue, weight: ir.NumericValue) -> ir.NumericScalar:
    """Return the sum of the weights of finite values: the denominator of a mean."""
    import ibis

    return ibis.ifelse(finite(value), weight, ibis.null("float64")).sum()


def ratio(top: Array, bottom: Array) -> Array:
    """Return top / bottom; NaN where nothing was counted."""
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), np.nan)


def finite_mean(values: Array, axis: int = 0) -> Array:
    """Return the mean of the finite numbers along one axis; NaN where there are none."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.asarray(np.where(count > 0, total / np.where(count > 0, count, 1), np.nan))
