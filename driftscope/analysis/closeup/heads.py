"""Attention masses head by head, where they were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from driftscope.analysis.query.column_arrays import ints
from driftscope.metrics.chains import finite_mean
from driftscope.trace.format.records import MASS_CLASSES

MAX_ROWS = 128
"""Heads of all layers together that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Means over chains."""

    layers: int
    heads: int
    """Per layer."""
    masses: Mapping[str, tuple[tuple[float, ...], ...]]
    """By class of slots: for each layer's heads in turn, the mass by depth."""


def heads_of(table: pa.Table, k: int) -> Heads | None:
    """Means over the chains of `table`; None where none has masses by head."""
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
