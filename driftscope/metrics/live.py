"""Means over layers of single chains, computed on arrays for a serving process, which loads no
query engine."""

from __future__ import annotations

import numpy as np

from driftscope.metrics.chains import Array, ratio


def layer_means(masses: Array) -> Array:
    """Return [n, K] from [n, K, layers], like `driftscope.metrics.attention.layer_means`; NaN
    instead of null."""
    finite = np.isfinite(masses)
    return ratio(np.where(finite, masses, 0.0).sum(axis=2), finite.sum(axis=2))
