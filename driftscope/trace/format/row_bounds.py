"""Bounds of the values in a row, checked before any figure is computed from it.

Bounds depend on the column's name and are equal in every record. They prevent a single wrong number
(a chain of 2^31 tokens, a time in the year 30000) from using up a reader's memory or time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.boundary.bounds import (
    MAX_HEADS,
    MAX_K,
    MAX_LAYERS,
    MAX_LIST,
    MAX_RANKS,
    MAX_ROWS_COUNTED,
    MAX_SECONDS,
    MAX_TEXT_CHARS,
    MAX_TOKENS,
    MAX_UNIX_S,
)
from driftscope.trace.format.arrow_arrays import lengths_of, numbers_of, validity_of
from driftscope.trace.format.records import DOUBLINGS
from driftscope.trace.format.schema import schema_of
from driftscope.vocabulary import DISTANCE_MASS, NULL_MASS, SINK_MASS

BOUNDS: Mapping[str, tuple[float, float]] = {
    "time_s": (0.0, MAX_UNIX_S),
    "arrival_s": (0.0, MAX_UNIX_S),
    "step": (0, MAX_ROWS_COUNTED),
    "position": (0, MAX_TOKENS),
    "prompt_tokens": (0, MAX_TOKENS),
    "output_tokens": (0, MAX_TOKENS),
    "max_tokens": (0, MAX_ROWS_COUNTED),
    "batch": (0, MAX_TOKENS),
    "requests": (0, MAX_TOKENS),
    "chains": (0, MAX_TOKENS),
    "k": (0, MAX_K),
    "drafted": (0, MAX_K),
    "accepted": (0, MAX_K),
    **dict.fromkeys(("known", "agreed", "served_agreed"), (0, MAX_K)),
    "layers": (0, MAX_LAYERS),
    "heads": (0, MAX_HEADS),
    "replica": (0, MAX_RANKS),
    **dict.fromkeys(
        ("step_s", "draft_s", "probe_s", "gpu_draft_s", "gpu_probe_s"), (0.0, MAX_SECONDS)
    ),
}
"""Smallest and largest value of a column with one number per row, by column name."""
SUM_WITHIN = 1e-3
"""Largest deviation from 1 of a depth's bins, sink and null. Sealing rounds each number by at most
2^-17 of its value, and measured masses deviate by less than 1e-4 (docs/accuracy.md)."""
_READ = ["k", "layers", DISTANCE_MASS, SINK_MASS, NULL_MASS]


def check_rows(table: pa.Table, record: str, bins: int | None = None) -> None:
    """Raise ValueError for the first column of `table` with a value that no recorder writes.

    `bins`: number of bins of the masses by distance, if the run's manifest states it.
    `table` has the columns of `record` in this version, see
    `driftscope.trace.format.schema.conform`.
    """
    for words in _faults(table, record):
        raise ValueError(words)
    for words in distance_faults(table, bins) if record == "draft" else ():
        raise ValueError(words)


def _faults(table: pa.Table, record: str) -> Iterator[str]:
    for field in schema_of(record):
        column = table.column(field.name)
        if column.null_count and not field.nullable:
            yield f"{field.name} is null in {column.null_count} rows"
        elif pa.types.is_list(field.type):
            yield from _long_lists(field.name, column)
        elif pa.types.is_string(field.type):
            yield from _long_texts(field.name, column)
        elif field.name in BOUNDS:
            yield from _out_of_bounds(field.name, column)


def _out_of_bounds(name: str, column: pa.ChunkedArray) -> Iterator[str]:
    low, high = BOUNDS[name]
    range_ = pc.min_max(column).as_py()
    if range_["min"] is None:
        return
    if not range_["min"] >= low:
        yield f"{name} is {range_['min']:g}, less than {low:g}"
    elif not range_["max"] <= high:
        yield f"{name} is {range_['max']:g}, more than {high:g}"
    elif pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        yield f"{name} is not a number in some rows"


def _long_texts(name: str, column: pa.ChunkedArray) -> Iterator[str]:
    longest = pc.max(pc.binary_length(column)).as_py()
    if longest is not None and longest > MAX_TEXT_CHARS:
        yield f"{name} is a text of {longest} bytes, more than {MAX_TEXT_CHARS}"


def _long_lists(name: str, column: pa.ChunkedArray) -> Iterator[str]:
    longest = max((int(np.max(lengths_of(c), initial=0)) for c in column.chunks), default=0)
    if longest > MAX_LIST:
        yield f"{name} is a list of {longest} numbers, more than {MAX_LIST}"


def distance_faults(rows: pa.Table, bins: int | None = None) -> Iterator[str]:
    """Yield in words what is wrong with the masses by distance in draft `rows`.

    `bins`: number of bins, if it is known from the run's manifest.
    """
    there = rows.filter(rows.column(DISTANCE_MASS).is_valid()).select(_READ)
    if not there.num_rows:
        return
    queries = numbers_of(_whole(there, "k")) * numbers_of(_whole(there, "layers"))
    lengths = lengths_of(_whole(there, DISTANCE_MASS))
    if bins is None:
        bins = int(lengths[0] // max(queries[0], 1))
    if bins <= DOUBLINGS + 1 or not np.array_equal(lengths, queries * bins):
        yield f"{DISTANCE_MASS} is not K times layers times {bins} bins long in some rows"
        return
    by_bin = numbers_of(_whole(there, DISTANCE_MASS).flatten()).reshape(-1, bins)
    unknown = np.isnan(by_bin)
    if (unknown.any(1) != unknown.all(1)).any():
        yield f"{DISTANCE_MASS} is not a number in some bins of a depth, but in others it is"
    if (by_bin < 0.0).any() or (by_bin > 1.0 + SUM_WITHIN).any():
        yield f"{DISTANCE_MASS} is not a share in some rows"
    others = [_elements(_whole(there, name), queries) for name in (SINK_MASS, NULL_MASS)]
    if any(other is None for other in others):
        yield f"{DISTANCE_MASS} is there, and {SINK_MASS} or {NULL_MASS} has another length"
        return
    total = by_bin.sum(1, dtype=np.float64) + sum(np.nan_to_num(x) for x in others if x is not None)
    off = np.abs(total[~unknown.any(1)] - 1.0)
    if (off > SUM_WITHIN).any():
        yield (
            f"{DISTANCE_MASS}, {SINK_MASS} and {NULL_MASS} sum to a number other than 1 at "
            f"{int((off > SUM_WITHIN).sum())} depths, by up to {off.max():.2g}"
        )


def _whole(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks()


def _elements(lists: pa.ListArray, queries: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return the elements of all rows, 0 where a row has no list; None if a list has another number
    of elements than the row has `queries`."""
    there = validity_of(lists)
    there = np.ones(len(lists), dtype=np.bool_) if there is None else there
    if not np.array_equal(lengths_of(lists)[there], queries[there]):
        return None
    out = np.zeros(int(queries.sum()))
    out[np.repeat(there, queries)] = numbers_of(lists.flatten())
    return out
