"""Check that the rows of a view are within their bounds, with one query per record.

`driftscope.trace.format.row_bounds` checks rows in memory; its bounds are used here, too. The
length of lists is bounded by the size of a sealed file, which `driftscope.trace.read.parquet_input`
checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from driftscope.analysis.query.query_engine import Engine
from driftscope.boundary.bounds import MAX_TEXT_CHARS
from driftscope.errors import DamagedTraceError
from driftscope.trace.format.distance_bins import DOUBLINGS, SUM_WITHIN
from driftscope.trace.format.row_bounds import BOUNDS
from driftscope.trace.format.schema import schema_of
from driftscope.vocabulary import DISTANCE_MASS, NULL_MASS, SINK_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir


def check_view(engine: Engine, view: str, record: str, run: Path, bins: int | None = None) -> None:
    """Raise DamagedTraceError if `view`, rows of `record`, contains values that no recorder
    writes.

    `bins`: number of bins of the masses by distance, if the run's manifest states it.
    """
    (extremes,) = engine.rows(_extremes(view, record)).to_pylist()
    if not extremes["rows"]:
        return
    for field in schema_of(record):
        name = field.name
        if not field.nullable and extremes.get(f"null_{name}"):
            raise _damaged(run, record, f"{name} is null in {extremes[f'null_{name}']} rows")
        low, high = _bounds(field)
        least, most = extremes.get(f"least_{name}"), extremes.get(f"most_{name}")
        if least is not None and not least >= low:
            raise _damaged(run, record, f"{name} is {least:g}, less than {low:g}")
        if most is not None and not most <= high:
            raise _damaged(run, record, f"{name} is {most:g}, more than {high:g}")
    if extremes.get("with_distances"):
        (extremes,) = engine.rows(_distance_extremes(view, record)).to_pylist()
        for words in _distance_faults(extremes, bins):
            raise _damaged(run, record, words)


def _bounds(field: pa.Field) -> tuple[float, float]:
    """Return the bounds of a number; for a text, the bounds of its length."""
    return BOUNDS.get(field.name, (0, MAX_TEXT_CHARS))


@cache
def _extremes(view: str, record: str) -> ir.Table:
    """Return one row with the number of rows, and the nulls, minimum and maximum of each column."""
    import ibis

    schema = schema_of(record)
    rows = ibis.table(ibis.Schema.from_pyarrow(schema), name=view)
    aggregates = {"rows": rows.count()}
    for field in schema:
        column = rows[field.name]
        if not field.nullable:
            aggregates[f"null_{field.name}"] = rows.count() - column.count()
        if pa.types.is_string(field.type):
            aggregates[f"most_{field.name}"] = column.length().max()
        elif field.name in BOUNDS:
            aggregates[f"least_{field.name}"] = column.min()
            aggregates[f"most_{field.name}"] = column.max()
    if DISTANCE_MASS in schema.names:
        aggregates["with_distances"] = rows[DISTANCE_MASS].notnull().sum()
    return rows.aggregate(**aggregates)


@cache
def _distance_extremes(view: str, record: str) -> ir.Table:
    """Return one row of aggregates over the chains that have masses by distance. From it
    `_distance_faults` checks these masses, as `driftscope.trace.format.distance_bins` does in
    memory. Rows in which some depths have no masses are checked there only: in a sum they are not a
    number."""
    import ibis

    rows = ibis.table(ibis.Schema.from_pyarrow(schema_of(record)), name=view)
    rows = rows.filter(rows[DISTANCE_MASS].notnull())
    masses, queries = rows[DISTANCE_MASS], (rows.k * rows.layers).nullif(0)
    bins, total = masses.length() / queries, masses.sums().cast("float64")
    for name in (SINK_MASS, NULL_MASS):
        known = rows[name].filter(lambda mass: ~mass.isnan())
        total += known.sums().cast("float64").fill_null(0.0)
    off = (total / queries - 1.0).abs()
    return rows.aggregate(
        least_bins=bins.fill_null(0.0).min(),
        most_bins=bins.max(),
        least_distance_mass=masses.mins().min(),
        most_off=ibis.ifelse(off.isnan(), ibis.null("float64"), off).max(),
    )


def _distance_faults(extremes: Mapping[str, Any], bins: int | None) -> Iterator[str]:
    """Yield in words what is wrong with the masses by distance."""
    least, most = extremes["least_bins"], extremes["most_bins"]
    if least is None:
        return
    wanted = bins or most
    if not least == most == wanted or wanted <= DOUBLINGS + 1:
        yield f"{DISTANCE_MASS} is not K times layers times {wanted or 0:g} bins long in some rows"
    if (low := extremes["least_distance_mass"]) is not None and low < 0.0:
        yield f"{DISTANCE_MASS} is {low:g}, less than 0"
    if (off := extremes["most_off"]) is not None and off > SUM_WITHIN:
        yield (
            f"{DISTANCE_MASS}, {SINK_MASS} and {NULL_MASS} sum to a number other than 1, by up to "
            f"{off:.2g} per depth"
        )


def _damaged(run: Path, record: str, words: str) -> DamagedTraceError:
    return DamagedTraceError(
        f"{run}: the rows of its {record} files cannot come from the recorder ({words}); record "
        "the run again, or move the damaged file away"
    )
