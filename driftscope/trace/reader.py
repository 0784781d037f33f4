"""Reads a run directory, complete or broken off, and checks the values of its rows.

Bounds depend on the column's name and are equal in every record. They prevent a single wrong number
(a chain of 2^31 tokens, a time in the year 30000) from using up a reader's memory or time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

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
from driftscope.boundary.files import first_line
from driftscope.errors import DamagedTraceError
from driftscope.trace.manifest import Manifest, check_version, read_manifest
from driftscope.trace.ranks import joined, place_of, with_replica
from driftscope.trace.records import DOUBLINGS, RECORDS
from driftscope.trace.schema import (
    conform,
    lengths_of,
    nulls_as_nan,
    numbers_of,
    schema_of,
    validity_of,
)
from driftscope.trace.segments import (
    SEALED,
    VERSION_KEY,
    damaged_files,
    miscounted,
    open_parquet,
    read_stream,
    restore,
    segments,
    source_of,
)
from driftscope.trace.status import STATUS_S, Status, read_faults, read_statuses
from driftscope.vocabulary import DISTANCE_MASS, NULL_MASS, SINK_MASS, Execution

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
    "verified": (0, MAX_K),
    "accepted": (0, MAX_K),
    "layers": (0, MAX_LAYERS),
    "heads": (0, MAX_HEADS),
    "target_token_rank": (0, MAX_TOKENS),
    "rejected_closeness": (0.0, 1.0),
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


def _faults(table: pa.Table, record: str) -> Iterator[str]:
    for field in schema_of(record):
        column = table.column(field.name)
        if column.null_count and not field.nullable:
            yield f"{field.name} is null in {column.null_count} rows"
        elif pa.types.is_list(field.type):
            yield from _long_lists(field.name, column)
        elif pa.types.is_string(field.type):
            longest = pc.max(pc.binary_length(column)).as_py()
            if longest is not None and longest > MAX_TEXT_CHARS:
                yield f"{field.name} is a text of {longest} bytes, more than {MAX_TEXT_CHARS}"
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


def _long_lists(name: str, column: pa.ChunkedArray) -> Iterator[str]:
    longest = max((int(np.max(lengths_of(c), initial=0)) for c in column.chunks), default=0)
    if longest > MAX_LIST:
        yield f"{name} is a list of {longest} numbers, more than {MAX_LIST}"
    if pc.list_flatten(column).null_count:
        yield f"{name} has nulls in its lists"


def distance_faults(rows: pa.Table, bins: int | None = None) -> Iterator[str]:
    """Yield in words what is wrong with the masses by distance in draft `rows`.

    `bins`: number of bins, if it is known from the run's manifest.
    """
    recorded = rows.filter(rows.column(DISTANCE_MASS).is_valid()).select(_READ)
    if not recorded.num_rows:
        return
    queries = numbers_of(_whole(recorded, "k")) * numbers_of(_whole(recorded, "layers"))
    lengths = lengths_of(_whole(recorded, DISTANCE_MASS))
    if bins is None:
        bins = int(lengths[0] // max(queries[0], 1))
    if bins <= DOUBLINGS + 1 or not np.array_equal(lengths, queries * bins):
        yield f"{DISTANCE_MASS} is not K times layers times {bins} bins long in some rows"
        return
    by_bin = numbers_of(_whole(recorded, DISTANCE_MASS).flatten()).reshape(-1, bins)
    unknown = np.isnan(by_bin)
    if (unknown.any(1) != unknown.all(1)).any():
        yield f"{DISTANCE_MASS} is not a number in some bins of a depth, but in others it is"
    if (by_bin < 0.0).any() or (by_bin > 1.0 + SUM_WITHIN).any():
        yield f"{DISTANCE_MASS} is not a share in some rows"
    others = [_elements(_whole(recorded, name), queries) for name in (SINK_MASS, NULL_MASS)]
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
    is_valid = validity_of(lists)
    is_valid = np.ones(len(lists), dtype=np.bool_) if is_valid is None else is_valid
    if not np.array_equal(lengths_of(lists)[is_valid], queries[is_valid]):
        return None
    out = np.zeros(int(queries.sum()))
    out[np.repeat(is_valid, queries)] = numbers_of(lists.flatten())
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run in memory: a table per record, columns as in `driftscope.trace.records`."""

    path: Path
    manifest: Manifest
    draft: pa.Table
    verify: pa.Table
    step: pa.Table
    request: pa.Table
    resource: pa.Table
    client: pa.Table
    statuses: tuple[Status, ...]
    problems: tuple[str, ...]
    """Missing or lost data, in words; empty for a run that closed cleanly."""


def read_trace(run: str | Path) -> Trace:
    """Read the run directory `run`.

    A run that broke off is read up to its last complete batch, and `problems` states what is
    missing. Raises NotATraceError, DamagedTraceError or SchemaVersionError.
    """
    run = Path(run)
    manifest = read_manifest(run)
    statuses = read_statuses(run)
    damaged = damaged_files(run, statuses)
    problems = list(damaged.values())
    tables = {
        name: read_record(run, name, manifest, problems, left_out=damaged) for name in RECORDS
    }
    problems += losses_of(statuses, manifest.lost)
    problems += miscounted(run, statuses, damaged)
    problems += [f"{fault.source} recorded nothing: {fault.reason}" for fault in read_faults(run)]
    return Trace(path=run, manifest=manifest, statuses=statuses, problems=tuple(problems), **tables)


def read_record(
    run: Path,
    record: str,
    manifest: Manifest,
    problems: list[str],
    *,
    rank: int | None = None,
    left_out: Container[Path] = (),
) -> pa.Table:
    """Return all rows of one record, or those of one tensor-parallel `rank`.

    Files in `left_out` are not read. Missing data is added to `problems`. Raises the same errors as
    `read_trace`.
    """
    by_rank: defaultdict[int, list[pa.Table]] = defaultdict(list)
    bins = len(manifest.distance_edges) or None
    for path in segments(run, record):
        if path in left_out:
            continue
        place = place_of(source_of(path, record))
        if rank not in (None, place.rank):
            continue
        rows = _with_execution(read_rows(path, record, problems, bins=bins), manifest)
        by_rank[place.rank].append(with_replica(rows, place))
    if not by_rank:
        return conform(pa.table({}), record)
    return joined(record, {rank: pa.concat_tables(t) for rank, t in by_rank.items()}, problems)


def _with_execution(rows: pa.Table, manifest: Manifest) -> pa.Table:
    """Return `rows` with the run's execution in steps that no hook watched."""
    if "execution" not in rows.column_names:
        return rows
    at, modes = rows.schema.get_field_index("execution"), rows.column("execution")
    mode = Execution.OF_MODE.get(manifest.mode, Execution.UNSEEN)
    execution = pc.if_else(pc.equal(modes, Execution.UNSEEN), mode, modes)
    return rows.set_column(at, rows.schema.field(at), execution)


def read_rows(
    path: Path,
    record: str,
    problems: list[str],
    *,
    bins: int | None = None,
) -> pa.Table:
    """Return the rows of one segment with the columns of this version of `record`.

    `bins`: number of bins of masses by distance that the run's manifest states. Missing data is
    added to `problems`. Raises DamagedTraceError for columns or values that do not belong to the
    record.
    """
    table = read_segment(path, problems)
    try:
        # A stream may have a batch for each row, and each costs as much as thousands of rows.
        rows = conform(table.combine_chunks(), record)
        # Refuse a value that no recorder writes.
        for words in _faults(rows, record):
            raise ValueError(words)
        for words in distance_faults(rows, bins) if record == "draft" else ():
            raise ValueError(words)
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise DamagedTraceError(
            f"{path}: its columns are not those of a {record} record ({first_line(error)}); "
            "move it away to analyse the rest of the run"
        ) from error
    return rows


def read_segment(path: Path, problems: list[str]) -> pa.Table:
    """Return the complete batches of one segment, with the columns of the version that wrote it.

    A torn tail and damaged stretches are added to `problems`. Raises DamagedTraceError or
    SchemaVersionError.
    """
    return _read_sealed(path) if path.suffix == SEALED else _read_stream(path, problems)


def _read_sealed(path: Path) -> pa.Table:
    try:
        with open_parquet(path, checksums=True) as file:
            check_segment(file.schema_arrow, path)
            table = file.read()
            table.validate(full=True)
            table = nulls_as_nan(table)
    except (ValueError, RuntimeError, OSError) as error:
        raise unreadable(path, error) from error
    try:
        return restore(table)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise DamagedTraceError(
            f"{path}: columns left out of the file cannot be derived from the others "
            f"({first_line(error)}); move it away to analyse the rest of the run"
        ) from error


def _read_stream(path: Path, problems: list[str]) -> pa.Table:
    """Return all intact batches of an Arrow stream; missing data is added to `problems`."""
    try:
        content = read_stream(path)
    except FileNotFoundError:  # sealed since the directory was listed
        return _read_sealed(path.with_suffix(SEALED))
    except (ValueError, OSError) as error:
        raise DamagedTraceError(
            f"{path}: not a readable Arrow stream ({first_line(error)}); "
            "move it away to analyse the rest of the run"
        ) from error
    if content.table.schema.metadata or content.table.num_columns:
        check_segment(content.table.schema, path)
    problems += [
        f"{path.name} is damaged after row {rows}: rows up to the next intact write are left out"
        for rows in content.damaged
    ]
    if content.torn:
        problems.append(
            f"{path.name}: ends after {content.table.num_rows} rows; the rows of its last, "
            "unfinished write are missing"
        )
    return nulls_as_nan(content.table)


def unreadable(path: Path, error: BaseException) -> DamagedTraceError:
    """Return the exception to raise for a sealed file that cannot be opened."""
    return DamagedTraceError(
        f"{path}: not a readable Parquet file ({first_line(error)}); "
        "move it away to analyse the rest of the run"
    )


def check_segment(schema: pa.Schema, path: Path) -> None:
    """Raise DamagedTraceError or SchemaVersionError for a file that must not be read."""
    version = (schema.metadata or {}).get(VERSION_KEY)
    if version is None:
        raise DamagedTraceError(f"{path}: not written by driftscope (it has no schema version)")
    check_version(version.decode("utf-8", "replace"), path)


def losses_of(statuses: tuple[Status, ...], lost: Mapping[str, int]) -> list[str]:
    """Return in words what the processes of the run lost.

    `lost` is the manifest's count, which remains if a status file is missing.
    """
    out = []
    known: Counter[str] = Counter()
    for status in statuses:
        if not status.closed:
            when = datetime.fromtimestamp(status.flushed_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            out.append(
                f"{status.source} is still recording or was killed: rows after its last flush "
                f"({when}, or up to {STATUS_S:g} seconds later) are missing, at most one second of "
                "them if it was killed"
            )
        known.update(status.dropped)
        for cause, count in sorted(status.dropped.items()):
            out.append(f"{status.source} dropped {count} rows ({cause.replace('_', ' ')})")
        if total := sum(status.errors.values()):
            hooks = ", ".join(f"{hook} {n}" for hook, n in sorted(status.errors.items()))
            out.append(
                f"{status.source} caught {total} errors in its hooks ({hooks}); "
                f"first: {status.first_error}"
            )
    for cause, count in sorted(lost.items()):
        if count > known[cause]:
            out.append(
                f"the manifest counts {count} rows dropped ({cause.replace('_', ' ')}), the status "
                f"files {known[cause]}: one of them is missing"
            )
    return out
