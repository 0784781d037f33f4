"""Association of acceptance with drift from request to request; it does not prove a cause."""

from __future__ import annotations

import numpy as np

from driftscope.metrics.chains import Array
from driftscope.metrics.definition import Definition

DRIFT_COST = Definition(
    name="effect.slope",
    title="Acceptance length by drift",
    meaning="Slope of the least-squares line through the requests: tokens per round that a request "
    "yields more (or fewer) for each additional unit of drift; each request is weighted by its "
    "number of rounds. It shows an association, not a cause.",
    unit="{token}",
    range="any; 0 if drift and acceptance are unrelated",
    source="driftscope; interval by resampling requests",
)


WITHIN_REQUEST = Definition(
    name="within_request.per_sd",
    title="Acceptance within a request",
    meaning="Change of the share of draft tokens accepted at a depth, for one standard deviation "
    "of a measure of the drafter, between tokens of one request and one depth in chains accepted "
    "up to that depth; how far the answer has come is a covariate. It shows an association, not a "
    "cause.",
    unit="1",
    range="-1 to 1; 0 if acceptance does not go with the measure",
    source="driftscope; linear probability model with strata, jackknife over requests",
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
