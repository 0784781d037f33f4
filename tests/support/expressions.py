"""Evaluate metrics that are written as Ibis expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ibis
import pyarrow as pa

from driftscope.analysis.query.query_engine import DuckDB


def evaluate(metric: Callable[[Any], Any], **columns: list[Any]) -> list[Any]:
    """Return the value of `metric` in each row of a table of `columns`; an aggregate gives one."""
    rows = pa.table({"row": list(range(len(next(iter(columns.values()))))), **columns})
    engine = DuckDB()
    engine.view("columns", rows, rows.schema)
    table = ibis.table(ibis.Schema.from_pyarrow(rows.schema), name="columns")
    value = metric(table)
    if not hasattr(value, "as_table"):
        value = ibis.literal(value)
    if value.op().shape.is_scalar() and not _is_literal(value):
        return engine.rows(table.aggregate(value=value)).column("value").to_pylist()
    found = engine.rows(table.select("row", value=value).order_by("row"))
    return found.column("value").to_pylist()


def _is_literal(value: Any) -> bool:
    return type(value.op()).__name__ == "Literal"
