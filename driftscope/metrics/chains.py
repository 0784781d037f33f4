"""Means over recorded chains, of quantities that may be missing in some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def finite_mean(values: Array) -> Array:
    """Mean over the first axis of what is a finite number there; NaN where nothing is."""
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def by_depth(values: Array) -> tuple[float, ...]:
    """[n, K] -> the mean over chains at each depth; NaN where no chain has a finite number."""
    return tuple(float(v) for v in finite_mean(values))
