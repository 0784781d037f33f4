"""Arrow schemas of the records, derived from the dataclasses so that a column is declared once.

The schema applies to a stream and to what a reader returns. A sealed file holds the same rows with
limited precision: measured numbers within 2^-17 of their value, times within a microsecond (see
`driftscope.trace.format.derived_columns`).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pyarrow as pa

from driftscope.trace.format.arrow_arrays import builder_of
from driftscope.trace.format.records import RECORDS, Floats, Ints, Row

_ARROW: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    Floats: pa.list_(pa.float32()),
    Ints: pa.list_(pa.int32()),
}


def _arrow_type(annotation: Any) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of an annotation, and whether it may be null."""
    if isinstance(annotation, types.UnionType):
        (inner,) = (a for a in typing.get_args(annotation) if a is not type(None))
        return _ARROW[inner], True
    return _ARROW[annotation], False


@cache
def schema_of(record: str) -> pa.Schema:
    """Return the Arrow schema of the record named `record`; raises KeyError if unknown."""
    hints = typing.get_type_hints(RECORDS[record])
    columns = [(name, *_arrow_type(hint)) for name, hint in hints.items()]
    return pa.schema([pa.field(name, kind, nullable=null) for name, kind, null in columns])


@cache
def builders_of(record: str) -> tuple[tuple[str, pa.DataType, Callable[[Any], pa.Array]], ...]:
    """Return the columns of a record: name, type, and builder of an Arrow array of values."""
    return tuple((field.name, field.type, builder_of(field.type)) for field in schema_of(record))


_NAMES = {cls: name for name, cls in RECORDS.items()}


def record_of(row: Row) -> str:
    """Return the name of a row's record."""
    return _NAMES[type(row)]


def to_batch(record: str, rows: Iterable[Row]) -> pa.RecordBatch:
    """Return one Arrow batch of `rows`, all of the named record."""
    rows = list(rows)
    arrays = [build([getattr(row, name) for row in rows]) for name, _, build in builders_of(record)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(record))


def conform(table: pa.Table, record: str) -> pa.Table:
    """Return `table` with the columns of `record`, all nullable; columns of a newer minor version
    are dropped.

    A table without columns, of a stream that broke off in its header, has no rows. Raises KeyError
    for a missing column.
    """
    nullable = pa.schema([f.with_nullable(True) for f in schema_of(record)])
    if not table.num_columns:
        return nullable.empty_table()
    return pa.table([table.column(f.name).cast(f.type) for f in nullable], schema=nullable)
