"""The no-drift expectation of single chains, computed on arrays for a serving process, which loads
no query engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.metrics.attention import no_drift_self, slot_weight
from driftscope.metrics.chains import Array, ratio


def over_layers(masses: Array) -> Array:
    """Return [n, K] from [n, K, layers], like `driftscope.metrics.attention.over_layers`; NaN
    instead of null."""
    finite = np.isfinite(masses)
    return ratio(np.where(finite, masses, 0.0).sum(axis=2), finite.sum(axis=2))


def visible_sink(position: NDArray[np.int64], sink_slots: Sequence[int]) -> NDArray[np.int64]:
    """Return the visible sink slots, [n], like `driftscope.metrics.attention.visible_sink`."""
    return np.searchsorted(np.unique(sink_slots), position, side="right")


def expected_self(
    position: NDArray[np.int64],
    sink: Array,
    null: Array | None,
    sink_slots: NDArray[np.int64] | int,
    k: int,
) -> NDArray[Any]:
    """Return the no-drift expectation of each chain, [n, K], from `sink` and `null`, [n] masses at
    depth 1; NaN if there is none, for example if no slot lies outside the sink set."""
    others = position + 1.0 - sink_slots
    free = np.where(others > 0, others, np.nan)
    weight = slot_weight(free, sink, 0.0 if null is None else null)
    depths = [no_drift_self(weight, depth) for depth in range(1, k + 1)]
    return np.stack(depths, axis=1)
