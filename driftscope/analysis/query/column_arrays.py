"""Columns of a trace's tables as numpy arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Codes = NDArray[np.int64]
"""Requests as small integers, see `driftscope.analysis.figures.requests`."""
Matrix = NDArray[np.float64]


def ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return an integer column, [n]; nulls, which no writer produces, count as 0."""
    return np.asarray(pc.fill_null(table.column(name), 0).to_numpy(), dtype=np.int64)


def floats(table: pa.Table, name: str) -> Matrix:
    """Return a number column, [n]; NaN for null."""
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


def whole(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column of counts or integers, [n], which some engines sum in wider types; null is
    0."""
    column = table.column(name).cast(pa.int64())
    known = pc.fill_null(column, 0) if column.null_count else column
    return np.asarray(known.to_numpy(), np.int64)


def total(table: pa.Table, name: str) -> int:
    """Return the sum of a column of counts."""
    return int(whole(table, name).sum())


def in_order(table: pa.Table, *names: str) -> pa.Table:
    """Return the rows in ascending order of these columns, so that sums over them are equal to the
    bit whatever files or engine they come from."""
    return table.sort_by([(name, "ascending") for name in names])


def ranked(codes: Codes) -> tuple[Codes, Codes]:
    """Return the different codes, ascending, and the rank of each code among them, [rows].

    It is `np.unique` with the inverse. Codes from 0 that have few gaps are counted, not sorted.
    """
    most = int(codes.max(initial=-1))
    if not len(codes) or codes.min() < 0 or most > 8 * len(codes):
        different, rank = np.unique(codes, return_inverse=True)
        return different, rank.astype(np.int64)
    there = np.zeros(most + 1, dtype=np.bool_)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def sums(table: pa.Table, name: str) -> Matrix:
    """Return a column of sums, [n]; null, the sum of nothing, is 0."""
    values = pc.fill_null(table.column(name).cast(pa.float64()), 0.0)
    return np.asarray(values.to_numpy(), dtype=np.float64)
