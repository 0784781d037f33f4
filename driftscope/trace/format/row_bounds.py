"""Bounds of the values in a row, checked before any figure is computed from it.

Bounds depend on the column's name and are equal in every record. They prevent a single wrong number
(a chain of 2^31 tokens, a time in the year 30000) from using up a reader's memory or time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from driftscope.trace.format.arrow_arrays import lengths_of
from driftscope.trace.format.distance_bins import distance_faults
from driftscope.trace.format.schema import schema_of

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
