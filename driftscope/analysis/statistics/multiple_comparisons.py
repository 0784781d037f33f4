"""Several tests at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ALPHA = 0.05
"""Chance that any of the differences that are called one is none."""


def holm(p: Sequence[float]) -> tuple[float, ...]:
    """p-values adjusted by Holm's step-down rule (Holm 1979): calling those below ALPHA keeps the
    chance of a single false call below ALPHA, however the tests depend on each other."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return tuple(adjusted.tolist())
