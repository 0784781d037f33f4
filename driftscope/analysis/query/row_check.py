"""Check that the rows of a view are within their bounds, with one query per record.

`driftscope.trace.format.row_bounds` checks rows in memory; its bounds are used here, too. The
length of lists is bounded by the size of a sealed file, which `driftscope.trace.read.parquet_input`
checks.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from driftscope.analysis.query.query_engine import Engine
from driftscope.boundary.bounds import MAX_TEXT_CHARS
from driftscope.errors import DamagedTraceError
from driftscope.trace.format.row_bounds import BOUNDS
from driftscope.trace.format.schema import schema_of

if TYPE_CHECKING:
    import ibis.expr.types as ir


def check_view(engine: Engine, view: str, record: str, run: Path) -> None:
    """Raise DamagedTraceError if `view`, rows of `record`, contains values that no recorder
    writes."""
    (found,) = engine.rows(_extremes(view, record)).to_pylist()
    if not found["rows"]:
        return
    for field in schema_of(record):
        name = field.name
        if not field.nullable and found.get(f"null_{name}"):
            raise _damaged(run, record, f"{name} is null in {found[f'null_{name}']} rows")
        low, high = _bounds(field)
        least, most = found.get(f"least_{name}"), found.get(f"most_{name}")
        if least is not None and not least >= low:
            raise _damaged(run, record, f"{name} is {least:g}, less than {low:g}")
        if most is not None and not most <= high:
            raise _damaged(run, record, f"{name} is {most:g}, more than {high:g}")


def _bounds(field: pa.Field) -> tuple[float, float]:
    """Return the bounds of a number; for a text, the bounds of its length."""
    return BOUNDS.get(field.name, (0, MAX_TEXT_CHARS))


@cache
def _extremes(view: str, record: str) -> ir.Table:
    """Return one row with the number of rows, and the nulls, minimum and maximum of each column."""
    import ibis

    schema = schema_of(record)
    rows = ibis.table(ibis.Schema.from_pyarrow(schema), name=view)
    found = {"rows": rows.count()}
    for field in schema:
        column = rows[field.name]
        if not field.nullable:
            found[f"null_{field.name}"] = column.isnull().sum()
        if pa.types.is_string(field.type):
            found[f"most_{field.name}"] = column.length().max()
        elif field.name in BOUNDS:
            found[f"least_{field.name}"] = column.min()
            found[f"most_{field.name}"] = column.max()
    return rows.aggregate(**found)


def _damaged(run: Path, record: str, words: str) -> DamagedTraceError:
    return DamagedTraceError(
        f"{run}: the rows of its {record} files are not those of a recorder ({words}); record the "
        "run again, or move the file that is damaged away"
    )
