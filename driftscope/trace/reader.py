"""Reads a run directory, whole or broken off."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftscope.errors import DamagedTraceError
from driftscope.trace.compact import restore
from driftscope.trace.manifest import Manifest, check_version, read_manifest
from driftscope.trace.ranks import joined, place_of, with_replica
from driftscope.trace.records import RECORDS, Execution
from driftscope.trace.schema import conform
from driftscope.trace.segment import SEALED, STREAM, VERSION_KEY, segments, source_of
from driftscope.trace.status import STATUS_S, Status, read_statuses


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run, in memory: a table per record, columns as in `driftscope.trace.records`."""

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
    """What is missing or was lost, in words; empty for a run that closed cleanly."""


def read_trace(run: str | Path) -> Trace:
    """Read the run directory `run`.

    A run that broke off is read up to its last whole batch, and `problems` says what is missing.
    Raises NotATraceError, DamagedTraceError or SchemaVersionError.
    """
    run = Path(run)
    manifest = read_manifest(run)
    statuses = read_statuses(run)
    problems: list[str] = []
    tables = {name: read_record(run, name, manifest, problems) for name in RECORDS}
    problems += losses_of(statuses)
    return Trace(path=run, manifest=manifest, statuses=statuses, problems=tuple(problems), **tables)


def defaults_of(manifest: Manifest) -> dict[str, Any]:
    """What a run's manifest says of all rows that do not say it themselves."""
    execution = Execution.OF_MODE.get(manifest.mode, Execution.UNSAID)
    return {"execution": execution, "rate": 1.0 / max(manifest.every, 1)}


def read_record(
    run: Path, record: str, manifest: Manifest, problems: list[str], *, rank: int | None = None
) -> pa.Table:
    """All rows of one record, or those of one tensor-parallel `rank`; what is missing is added to
    `problems`. Raises as `read_trace`."""
    by_rank: defaultdict[int, list[pa.Table]] = defaultdict(list)
    defaults = defaults_of(manifest)
    for path in segments(run, record):
        place = place_of(source_of(path, record))
        if rank not in (None, place.rank):
            continue
        table = read_segment(path, problems)
        try:
            rows = _said(conform(table, record, defaults), defaults["execution"])
        except pa.ArrowException as error:
            raise DamagedTraceError(
                f"{path}: its columns are not those of a {record} record ({_first_line(error)}); "
                "move it away to analyse the rest of the run"
            ) from error
        by_rank[place.rank].append(with_replica(rows, place))
    if not by_rank:
        return conform(pa.table({}), record)
    return joined(record, {rank: pa.concat_tables(t) for rank, t in by_rank.items()}, problems)


def _said(table: pa.Table, execution: str) -> pa.Table:
    """`table` with the run's execution in rows that do not say how theirs was."""
    if "execution" not in table.column_names:
        return table
    at, said = table.schema.get_field_index("execution"), table.column("execution")
    filled = pc.if_else(pc.equal(said, Execution.UNSAID), execution, said)
    return table.set_column(at, table.field(at), filled)


def read_segment(path: Path, problems: list[str]) -> pa.Table:
    """The whole batches of one segment, with the columns of the version that wrote it.

    A torn tail is noted in `problems`. Raises DamagedTraceError or SchemaVersionError.
    """
    return _read_sealed(path) if path.suffix == SEALED else _read_stream(path, problems)


def _read_sealed(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error
    check_segment(table.schema, path)
    try:
        return restore(table)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise DamagedTraceError(
            f"{path}: columns that it left out do not follow from the others "
            f"({_first_line(error)}); move it away to analyse the rest of the run"
        ) from error


def _read_stream(path: Path, problems: list[str]) -> pa.Table:
    """All whole batches of an Arrow stream; a torn tail is noted, not raised."""
    assert path.suffix == STREAM
    batches: list[pa.RecordBatch] = []
    try:
        with pa.memory_map(str(path)) as source:
            if source.size() == 0:
                return pa.table({})
            reader = pa.ipc.open_stream(source)
            check_segment(reader.schema, path)
            try:
                batches.extend(iter(reader))
            except (pa.ArrowException, OSError, EOFError):
                problems.append(
                    f"{path.name}: breaks off after {sum(b.num_rows for b in batches)} rows; "
                    "the rows of its last, unfinished write are missing"
                )
            return pa.Table.from_batches(batches, reader.schema)
    except FileNotFoundError:  # sealed since the directory was listed
        return _read_sealed(path.with_suffix(SEALED))
    except (pa.ArrowException, OSError) as error:
        raise DamagedTraceError(
            f"{path}: not a readable Arrow stream ({_first_line(error)}); "
            "move it away to analyse the rest of the run"
        ) from error


def unreadable(path: Path, error: BaseException) -> DamagedTraceError:
    """What to raise for a sealed file that cannot be opened."""
    return DamagedTraceError(
        f"{path}: not a readable Parquet file ({_first_line(error)}); "
        "move it away to analyse the rest of the run"
    )


def check_segment(schema: pa.Schema, path: Path) -> None:
    """Raise DamagedTraceError or SchemaVersionError for a file that is not to be read."""
    version = (schema.metadata or {}).get(VERSION_KEY)
    if version is None:
        raise DamagedTraceError(f"{path}: not written by driftscope (no schema version in it)")
    check_version(version.decode(), path)


def losses_of(statuses: tuple[Status, ...]) -> list[str]:
    """What processes of the run lost, in words."""
    out = []
    for status in statuses:
        if not status.closed:
            when = datetime.fromtimestamp(status.flushed_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            out.append(
                f"{status.source} is still recording or was killed: rows after its last flush "
                f"({when}, or up to {STATUS_S:g} seconds later) are missing, at most one second of "
                "them if it was killed"
            )
        for cause, count in sorted(status.dropped.items()):
            out.append(f"{status.source} dropped {count} rows ({cause.replace('_', ' ')})")
        if total := sum(status.errors.values()):
            hooks = ", ".join(f"{hook} {n}" for hook, n in sorted(status.errors.items()))
            out.append(
                f"{status.source} caught {total} errors in its hooks ({hooks}); "
                f"first: {status.first_error}"
            )
    return out


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
