"""Columns of one batch as numpy arrays, read without importing pandas into an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.trace.format.arrow_arrays import lengths_of, numbers_of, validity_of

Matrix = NDArray[np.float64]


def numbers(batch: pa.RecordBatch, name: str) -> Matrix:
    """Return a number column as [n] float64, NaN for null."""
    column = batch.column(name)
    return np.where(validity_of(column), numbers_of(column), np.nan).astype(np.float64)


def strings(batch: pa.RecordBatch, name: str) -> list[str | None]:
    """Return a string column as a list of length n, None for null."""
    values: list[str | None] = batch.column(name).to_pylist()
    return values


def matrix(batch: pa.RecordBatch, name: str, width: int) -> Matrix | None:
    """Return a list column as [n, width]; None if no row has that width. A row that is null or of
    another width becomes NaN."""
    column = batch.column(name)
    lengths = lengths_of(column)
    fits = validity_of(column) & (lengths == width)
    if not width or not fits.any():
        return None
    values = np.asarray(numbers_of(column.flatten()), dtype=np.float64)
    out = np.full((len(column), width), np.nan)
    out[fits] = values[np.repeat(fits, lengths)].reshape(-1, width)
    return out


def rows_where(batch: pa.RecordBatch, wanted: NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows of `batch` for which `wanted`, [n], is true."""
    if wanted.all():
        return batch
    return batch.take(_indices(np.flatnonzero(wanted)))


def _indices(at: NDArray[Any]) -> pa.Array:
    index = np.ascontiguousarray(at, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(index), [None, pa.py_buffer(index)])
