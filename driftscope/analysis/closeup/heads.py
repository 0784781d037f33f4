"""Attention masses per head, in runs that recorded them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from driftscope.analysis.query.column_arrays import ints
from driftscope.metrics.chains import finite_mean
from driftscope.vocabulary import MASS_CLASSES

MAX_ROWS = 128
"""Largest number of heads kept, all layers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention masses per head, averaged over chains."""

    layers: int
    heads: int
    """Heads per layer."""
    masses: Mapping[str, tuple[tuple[float, ...], ...]]
    """Masses by class of slots; one row per head, layer by layer, with the mass by depth."""


def heads_of(table: pa.Table, k: int) -> Heads | None:
    """Return means over the chains of `table`; None if no chain has masses by head."""
    if not table.num_rows:
        return None
    layers, heads = int(ints(table, "layers")[0]), int(ints(table, "heads")[0])
    width = k * layers * heads * len(MASS_CLASSES)
    flat = [row for row in table.column("head_mass").to_pylist() if len(row) == width]
    if not flat or not width:
        return None
    values = np.array(flat, dtype=np.float64)
    mean = finite_mean(values.reshape(len(values), k, layers * heads, len(MASS_CLASSES)))
    return Heads(
        layers=layers,
        heads=heads,
        masses={
            name: tuple(_short(row) for row in mean[:, :MAX_ROWS, at].T)
            for at, name in enumerate(MASS_CLASSES)
            if np.nan_to_num(mean[:, :, at]).any()
        },
    )


def _short(row: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in row)
