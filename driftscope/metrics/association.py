"""Association of acceptance with drift from request to request; it does not prove a cause."""

from __future__ import annotations

import numpy as np

from driftscope.metrics.chains import Array
from driftscope.metrics.definition import Definition

DRIFT_COST = Definition(
    name="effect.slope",
    title="Acceptance length by drift",
    meaning="Slope of the least-squares line through the requests: how many tokens per round a "
    "request yields more (or fewer) for one unit more of drift; each request weighs as many rounds "
    "as it has. It says what goes together, not what causes what.",
    unit="{token}",
    range="any; 0 where drift and acceptance have nothing to do with each other",
    source="driftscope; interval by resampling requests",
)


def moments(x: Array, y: Array, weight: Array) -> Array:
    """Return the terms that `slope` needs for each point, [n, 5]; the rows of several points add
    up."""
    return np.stack([weight, weight * x, weight * y, weight * x * x, weight * x * y], axis=-1)


def slope(sums: Array) -> Array:
    """Return the slope of the line through points whose summed moments are `sums`, [..., 5].

    NaN if all x are equal.
    """
    w, x, y, xx, xy = np.moveaxis(sums, -1, 0)
    spread = w * xx - x * x
    return np.where(spread > 0, (w * xy - x * y) / np.where(spread > 0, spread, 1.0), np.nan)
