"""A run's records as views that queries read, in memory or left in their files.

The views have the names of the records (QUERIED) and the columns of
`driftscope.trace.records`: times are in seconds, and each row carries its
replica. Lists that a sealed file leaves out
(`driftscope.trace.segments`) are null in `draft`; code that needs them reads `parts`,
one file layout after another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftscope.analysis.condition_columns import COLUMNS, OF_STEPS, WEIGHTS, Names
from driftscope.analysis.conditions import Condition
from driftscope.analysis.query import row_filters
from driftscope.analysis.query.query_engine import (
    Content,
    DuckDB,
    QueryEngine,
    ViewFiles,
    floats,
    sql_of,
    whole,
)
from driftscope.analysis.query.row_filters import Bucket, Update, noted_updates, served_updates
from driftscope.boundary.bounds import MAX_TEXT_CHARS
from driftscope.errors import DamagedTraceError
from driftscope.trace.manifest import Manifest, read_manifest
from driftscope.trace.ranks import place_of
from driftscope.trace.reader import (
    BOUNDS,
    SUM_WITHIN,
    Trace,
    check_segment,
    losses_of,
    read_record,
    read_segment,
    unreadable,
)
from driftscope.trace.records import DOUBLINGS
from driftscope.trace.schema import conform, schema_of
from driftscope.trace.segments import (
    SEALED,
    damaged_files,
    derived_of,
    miscounted,
    open_parquet,
    segments,
    source_of,
)
from driftscope.trace.status import Status, read_statuses
from driftscope.vocabulary import DISTANCE_MASS, NULL_MASS, SINK_MASS, Execution, Structured

if TYPE_CHECKING:
    import ibis.expr.types as ir


_RECORDED = "recorded"
"""End of the name of a view on a record's rows as they were recorded."""
QUERIED = ("draft", "verify", "step", "request")
"""Records that queries read."""
SERVED = "served"
"""Name of the view of all decode steps that meet the conditions, also of requests that `verify`
leaves out, see `narrow`."""
LEFT_OUT = "left_out"
"""Name of the view of these requests."""
PART = "draft_part"
"""Name of the view of the draft rows of one layout."""
IN_BUCKETS = "in_buckets"
"""Suffix of the views of a record's rows with the bucket of each row."""
WIDE = "wide"
"""Suffix of the views of a record's rows with all columns that conditions on them name."""
Derived = tuple[tuple[str, str], ...]
"""Columns that files leave out, each with the column from which it follows; see `compact`."""
REQUEST = ("replica", "request")
"""Columns that identify a request: independent replicas may use the same request names."""
NUMBERED = "numbered"
"""Name of the view of all requests, each with its number."""
CHOSEN = "chosen"
"""Name of the view of some requests, numbered, that one query reads."""
LOOKED_AT = "looked_at"
"""Name of the view of the requests whose chains are looked at one by one."""
STEPS_LOOKED_AT = "steps_looked_at"
"""Name of the view of their steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One run, ready for queries."""

    path: Path
    manifest: Manifest
    statuses: tuple[Status, ...]
    problems: tuple[str, ...]
    """Problems found by the reader, as in `Trace`."""
    engine: QueryEngine
    parts: Mapping[Derived, Content]
    """Draft rows by the columns that their files leave out."""
    conditions: tuple[Condition, ...] = ()
    """Conditions that the rows of all views meet, see `narrow`."""
    left_out: pa.Table | None = None
    """Replica and name of the requests whose rows are in no view but SERVED; None if no request is
    left out."""
    cluster: str | None = None
    """Column of request rows that the user chose as the unit of inference, see
    `driftscope.analysis.figures.requests`; None: the first that the recording knows."""

    def close(self) -> None:
        """Release the engine's resources."""
        self.engine.close()

    @property
    def is_narrowed(self) -> bool:
        """Whether some rows are in no view, see `narrow`."""
        return bool(self.conditions) or self.left_out is not None

    def use(self, derived: Derived) -> None:
        """Define the view PART on the draft rows of this layout."""
        if not self.is_narrowed:
            self.engine.view(PART, self.parts[derived], queried("draft"))
            return
        self.engine.view(f"{PART}_all", self.parts[derived], queried("draft"))
        _define(self, PART, "draft")

    def of_parts(self, query: Callable[[Derived], Any]) -> pa.Table:
        """Return the rows of a query on the view PART, made for each layout of files in turn."""
        found = []
        for derived in self.parts:
            self.use(derived)
            found.append(self.engine.rows(query(derived)))
        return pa.concat_tables(found, promote_options="permissive")


def tables_of(trace: Trace, engine: QueryEngine | None = None) -> Tables:
    """Return the tables of a `trace` that is already in memory."""
    engine = engine or DuckDB()
    for record in QUERIED:
        rows = _queried(getattr(trace, record), record)
        engine.view(f"{record}_{_RECORDED}", rows, queried(record))
        _define_all(engine, record)
    return Tables(
        path=trace.path,
        manifest=trace.manifest,
        statuses=trace.statuses,
        problems=trace.problems,
        engine=engine,
        parts={(): _queried(trace.draft, "draft")},
    )


def open_run(run: str | Path, engine: QueryEngine | None = None) -> Tables:
    """Open the run directory `run`; its sealed files are left where they are.

    Records that cannot be queried in place are read into memory: streams, and the records of
    several tensor-parallel ranks. Raises NotATraceError, DamagedTraceError or SchemaVersionError.
    """
    run, engine = Path(run), engine or DuckDB()
    manifest, statuses = read_manifest(run), read_statuses(run)
    damaged = damaged_files(run, statuses)
    problems = list(damaged.values())
    parts: dict[Derived, Content] = {}
    in_place = {record: _in_place(run, record, manifest.mode, damaged) for record in QUERIED}
    layouts = [files for parts_of in in_place.values() for files in (parts_of or {}).values()]
    engine.admit(path for layout in layouts for files in layout for path in files.paths)
    for record, parts_of in in_place.items():
        view = f"{record}_{_RECORDED}"
        if parts_of is None:
            rows = _queried(read_record(run, record, manifest, problems, left_out=damaged), record)
            engine.view(view, rows, queried(record))
        else:
            together = [files for layout in parts_of.values() for files in layout]
            engine.view(view, together, queried(record))
            check_view(engine, view, record, run, len(manifest.distance_edges) or None)
        if record == "draft":
            parts = {(): rows} if parts_of is None else {**parts_of}
        _define_all(engine, record)
    return Tables(
        path=run,
        manifest=manifest,
        statuses=statuses,
        problems=(
            *problems,
            *losses_of(statuses, manifest.lost),
            *miscounted(run, statuses, damaged),
        ),
        engine=engine,
        parts=parts,
    )


def _define_all(engine: QueryEngine, record: str) -> None:
    """Define the views `<record>_all` and `<record>` on the recorded rows, and SERVED. A request
    without a label that asked for structured output has the kind of it as its label: what is
    accepted under a grammar is another matter than what is in free text."""
    names = ", ".join(queried(record).names)
    if record == "request":
        kind = f"CASE WHEN structured <> '{Structured.NONE}' THEN '(' || structured || ')' END"
        names = names.replace("label", f"coalesce(label, {kind}) AS label", 1)
    engine.define(f"{record}_all", f"SELECT {names} FROM {record}_{_RECORDED}")
    engine.define(record, f"SELECT * FROM {record}_all")
    if record == "verify":
        engine.define(SERVED, "SELECT * FROM verify_all")


def narrow(
    tables: Tables, conditions: Sequence[Condition], left_out: pa.Table | None = None
) -> Tables:
    """Return the run with only the rows that meet `conditions`, in addition to its earlier
    conditions, and with only the requests that have such a decode step. The requests in `left_out`,
    by replica and name, keep no row in any view but SERVED.

    The views of `tables` itself are narrowed from then on, too.
    """
    out = tables.left_out if left_out is None else left_out
    narrowed = replace(tables, conditions=(*tables.conditions, *conditions), left_out=out)
    engine, met = tables.engine, narrowed.conditions
    if out is not None:
        engine.view(LEFT_OUT, out, _KEYS)
    engine.define(SERVED, _filtered_rows(narrowed, SERVED, "verify", "verify_all"))
    for record in ("verify", "draft"):
        _define(narrowed, record, record)
    layouts = [layout for layout in met if layout.names <= set(OF_STEPS)]
    names = _names(layouts) - {"batch"}
    constants, dialect = _constants(tables, names), tables.engine.dialect
    rows = row_filters.wide("step_all", queried("step").names, names, constants, dialect)
    source = (
        f"SELECT w.*, w.requests AS batch FROM ({rows}) w" if layouts else "SELECT * FROM step_all"
    )
    tables.engine.define("step", _keep_met(tables, "step", "step", source, layouts))
    decoding = (
        "SELECT r.* FROM request_all r SEMI JOIN verify v "
        "ON r.replica = v.replica AND r.request = v.request"
    )
    engine.define(
        "request", decoding if met else _without_left_out(narrowed, "SELECT * FROM request_all")
    )
    return narrowed


def cut(tables: Tables, source: str, record: str, bucket: Bucket) -> None:
    """Define the view `<source>_in_buckets` on the rows of `source`, each with its `bucket`."""
    columns = queried(record).names
    constants, dialect = _constants(tables, bucket.names), tables.engine.dialect
    rows = row_filters.wide(source, columns, bucket.names, constants, dialect)
    sql = f"SELECT {', '.join(columns)}, {bucket.sql} AS bucket FROM ({rows}) w"
    tables.engine.define(f"{source}_{IN_BUCKETS}", sql)


def _define(tables: Tables, view: str, record: str) -> None:
    """Define `view` as the rows of `<view>_all` that meet the conditions of `tables`, without the
    requests that it leaves out."""
    met = _filtered_rows(tables, view, record, f"{view}_all")
    tables.engine.define(view, _without_left_out(tables, met))


def _filtered_rows(tables: Tables, view: str, record: str, source: str) -> str:
    """Return SQL for the rows of `source` that meet the conditions, for the view `view`."""
    names = _names(tables.conditions)
    constants, dialect = _constants(tables, names), tables.engine.dialect
    rows = row_filters.wide(source, queried(record).names, names, constants, dialect)
    return _keep_met(tables, view, record, rows, tables.conditions)


def _without_left_out(tables: Tables, rows: str) -> str:
    """Return SQL for those rows of an SQL query whose request is not left out."""
    if tables.left_out is None:
        return rows
    return (
        f"SELECT a.* FROM ({rows}) a ANTI JOIN {LEFT_OUT} l "
        "ON a.replica = l.replica AND a.request = l.request"
    )


def _keep_met(
    tables: Tables, view: str, record: str, rows: str, conditions: Sequence[Condition]
) -> str:
    """Return SQL for those rows of the SQL query `rows` that meet the conditions, for `view`."""
    import ibis

    engine, wide = tables.engine, f"{view}_{WIDE}"
    engine.define(wide, rows)
    schema = ibis.Schema.from_pyarrow(queried(record))
    more = {name: COLUMNS[name].type for name in _names(conditions) if name not in schema}
    named = ibis.table({**schema, **more}, name=wide)
    met = named.filter([condition.on(named) for condition in conditions]) if conditions else named
    query = met.select(*queried(record).names)
    return sql_of(query.op(), engine.dialect.name)


_KEYS = pa.schema([("replica", pa.int64()), ("request", pa.string())])


def _names(conditions: Sequence[Condition]) -> Names:
    return frozenset[str]().union(*(condition.names for condition in conditions))


def _constants(tables: Tables, names: Names) -> dict[str, str | None]:
    """Return the columns that are equal in all rows, or follow from their times; executions and
    updates are looked up only if they are named."""
    execution_names = (
        tables.engine.rows(executions()).column("execution").to_pylist()
        if "execution" in names
        else ()
    )
    updates = updates_of(tables) if WEIGHTS in names else {}
    times = {replica: [update.time_s for update in some] for replica, some in updates.items()}
    return row_filters.constants_of(tables.manifest, execution_names, times, tables.engine.dialect)


def updates_of(tables: Tables) -> dict[int, list[Update]]:
    """Return the updates of the served weights by replica, see `served_updates`."""
    noted = noted_updates(tables.statuses)
    if not noted:
        return {}
    rounds = tables.engine.rows(round_times())
    replica, time_s = whole(rounds, "replica"), floats(rounds, "time_s")
    return served_updates(noted, {of: np.sort(time_s[replica == of]) for of in noted})


@cache
def round_times() -> ir.Table:
    """Return the time of every decode step, before any condition."""
    import ibis

    schema = ibis.Schema.from_pyarrow(queried("verify"))
    return ibis.table(schema, name="verify_all").select("replica", "time_s").distinct()


@cache
def executions() -> ir.Table:
    """Return the executions of the drafter in the steps that drafted, before any condition."""
    import ibis

    schema = ibis.Schema.from_pyarrow(queried("step"))
    steps = ibis.table(schema, name="step_all")
    return steps.filter(steps.chains > 0).select("execution").distinct()


def queried(record: str) -> pa.Schema:
    """Return the schema of a record's view: that of the record, with all columns nullable."""
    return pa.schema([f.with_nullable(True) for f in schema_of(record)])


def _queried(table: pa.Table, record: str) -> pa.Table:
    return conform(table, record).cast(queried(record))


def _in_place(
    run: Path, record: str, mode: str, left_out: Container[Path]
) -> dict[Derived, list[ViewFiles]] | None:
    """Return the sealed files of a record by layout; None if they must be read into memory.
    `mode` is the manifest's, which steps that no hook watched ran in."""
    paths = [path for path in segments(run, record) if path not in left_out]
    ranks = {place_of(source_of(path, record)).rank for path in paths}
    if not paths or len(ranks) > 1 or any(path.suffix != SEALED for path in paths):
        return None
    paths_by_layout: defaultdict[tuple[Any, ...], list[Path]] = defaultdict(list)
    for path in paths:
        try:
            with open_parquet(path) as file:
                schema = file.schema_arrow
            derived = derived_of(schema)
        except (ValueError, RuntimeError, OSError) as error:
            raise unreadable(path, error) from error
        check_segment(schema, path)
        _check_columns(schema, record, derived, path)
        columns = tuple(zip(schema.names, schema.types, strict=True))
        replica = place_of(source_of(path, record)).replica
        paths_by_layout[tuple(sorted(derived.items())), columns, replica].append(path)
    parts: defaultdict[Derived, list[ViewFiles]] = defaultdict(list)
    for (derived, columns, replica), some in paths_by_layout.items():
        constant = {} if replica is None else {"replica": replica}
        unseen = {"execution": Execution.OF_MODE.get(mode, Execution.UNSEEN)}
        files = ViewFiles(
            paths=tuple(some), columns=dict(columns), constant=constant, unseen=unseen
        )
        parts[derived].append(files)
    return dict(parts)


def _check_columns(schema: pa.Schema, record: str, derived: Container[str], path: Path) -> None:
    """Raise DamagedTraceError for a column that is missing and not `derived`, for one with another
    type than in the record, and for two columns whose names differ only in case, which query
    engines confuse."""
    known = schema_of(record)
    missing = [n for n in known.names if n not in schema.names and n not in derived]
    if missing:
        raise DamagedTraceError(
            f"{path}: its columns are not those of a {record} record ({missing[0]} is missing); "
            "move it away to analyse the rest of the run"
        )
    for name, times in Counter(map(str.lower, schema.names)).most_common(1):
        if times == 1:
            break
        raise DamagedTraceError(
            f"{path}: has {times} columns named {name!r}, ignoring case; move it away to analyse "
            "the rest of the run"
        )
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in known.names or kind.equals(known.field(name).type):
            continue
        if not _fits(kind, known.field(name).type):
            raise DamagedTraceError(
                f"{path}: its columns are not those of a {record} record ({name} has the type "
                f"{kind}); move it away to analyse the rest of the run"
            )


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(wanted == pa.float64())
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return _fits(kind.value_type, wanted.value_type) or kind.value_type == wanted.value_type
    both = (kind, wanted)
    return bool(
        all(map(pa.types.is_integer, both))
        or all(map(pa.types.is_floating, both))
        or (pa.types.is_integer(kind) and pa.types.is_floating(wanted))
        or pa.types.is_null(kind)
    )


def check_view(
    engine: QueryEngine, view: str, record: str, run: Path, bins: int | None = None
) -> None:
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
        low, high = BOUNDS.get(name, (0, MAX_TEXT_CHARS))  # of a text: those of its length
        least, most = extremes.get(f"least_{name}"), extremes.get(f"most_{name}")
        if least is not None and not least >= low:
            raise _damaged(run, record, f"{name} is {least:g}, less than {low:g}")
        if most is not None and not most <= high:
            raise _damaged(run, record, f"{name} is {most:g}, more than {high:g}")
    if extremes.get("with_distances"):
        (extremes,) = engine.rows(_distance_extremes(view, record)).to_pylist()
        for words in _distance_faults(extremes, bins):
            raise _damaged(run, record, words)


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
    `_distance_faults` checks these masses, as `driftscope.trace.records` does in
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


def table(name: str, record: str | None = None, **more: str) -> ir.Table:
    """Return the view `name`, with the columns of a record, and with `more` columns by name and
    type."""
    import ibis

    schema = ibis.Schema.from_pyarrow(queried(record or name))
    return ibis.table({**dict(schema.items()), **more}, name=name)


def sampled(rows: ir.Table, in_steps: bool) -> ir.Table:
    """Return those of the `rows`, chains, that belong to the requests in LOOKED_AT, with the number
    of their request; see `driftscope.analysis.figures.verified_chains`.

    `in_steps`: the steps of these requests are in the view STEPS_LOOKED_AT. They select the same
    rows sooner, because an engine skips the parts of a file whose steps it need not read.
    """
    import ibis

    if in_steps:
        rows = rows.semi_join(ibis.table({"step": "int64"}, name=STEPS_LOOKED_AT), "step")
    return rows.join(numbered(LOOKED_AT), REQUEST)


def numbered(name: str) -> ir.Table:
    """Return a view of requests with their numbers."""
    import ibis

    columns = {"replica": "int64", "request": "string", "cluster": "int64"}
    return ibis.table(columns, name=name)


NAMED = 5
"""Largest number of files that an error names."""
_LENGTHS = {"draft": "k", "step": "k", "verify": "verified"}


def chains_too_long(tables: Tables, configured: int, longest: int) -> str:
    """Return the error text for chains of more tokens than the run was configured for."""
    paths = [
        path
        for record, column in _LENGTHS.items()
        for path in _files(tables.path, record, column, lambda most: most > configured)
    ]
    return (
        f"{tables.path}: chains of K = {longest} in a run whose manifest says K = {configured}, so "
        f"its files belong to two runs{_listed(paths)}; {_DO}"
    )


def two_drafters(tables: Tables, layers: list[int]) -> str:
    """Return the error text for chains of drafters with different numbers of layers."""
    named_layers = tables.manifest.drafter_layers
    own = named_layers if named_layers in layers else layers[0]
    paths = _files(tables.path, "draft", "layers", lambda most: most != own)
    return (
        f"{tables.path}: drafters of {' and '.join(map(str, layers))} layers in one run, so its "
        f"files belong to two runs{_listed(paths)}; {_DO}"
    )


_DO = "move the files of the other run into a folder of their own, with its manifest.json"


def _files(run: Path, record: str, column: str, strange: Callable[[int], bool]) -> Iterable[Path]:
    for path in segments(run, record):
        table = read_segment(path, [])
        if column in table.column_names and table.num_rows:
            most = pc.max(table.column(column)).as_py()
            if most is not None and strange(int(most)):
                yield path


def _listed(files: Iterable[Path]) -> str:
    names = sorted({path.name for path in files})
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f" ({', '.join(names[:NAMED])}{more})" if names else ""
