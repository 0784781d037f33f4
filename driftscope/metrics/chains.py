"""Means over recorded chains, of quantities that may be missing in some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def finite_mean(values: Array, weight: Array | None = None, axis: int = 0) -> Array:
    """Mean over one axis of what is a finite number there; NaN where nothing is.

    `weight` is [length of the axis], positive: a chain that was sampled at the rate r stands for
    1 / r chains (Horvitz and Thompson 1952), so that a rate that changes during a run leaves the
    mean unbiased. None weighs all alike.
    """
    shape = [1] * values.ndim
    shape[axis] = -1
    each = np.ones(values.shape[axis]) if weight is None else weight
    finite = np.isfinite(values)
    counted = np.where(finite, each.reshape(shape), 0.0)
    count = counted.sum(axis=axis)
    total = (np.where(finite, values, 0.0) * counted).sum(axis=axis)
    return np.where(count > 0, total / np.where(count > 0, count, 1.0), np.nan)


def by_depth(values: Array, weight: Array | None = None) -> tuple[float, ...]:
    """[n, K] -> the mean over chains at each depth; NaN where no chain has a finite number."""
    return tuple(float(v) for v in finite_mean(values, weight))
