"""Reads a run directory, complete or broken off."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from driftscope.boundary.files import first_line
from driftscope.errors import DamagedTraceError
from driftscope.trace.format.derived_columns import restore
from driftscope.trace.format.manifest import Manifest, check_version, read_manifest
from driftscope.trace.format.record_stream import read_stream
from driftscope.trace.format.records import RECORDS
from driftscope.trace.format.row_bounds import check_rows
from driftscope.trace.format.schema import conform
from driftscope.trace.format.segment import SEALED, VERSION_KEY, segments, source_of
from driftscope.trace.format.start_fault import read_faults
from driftscope.trace.format.status import STATUS_S, Status, read_statuses
from driftscope.trace.read.integrity import damaged_files
from driftscope.trace.read.parquet_input import open_parquet
from driftscope.trace.read.ranks import joined, place_of, with_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run in memory: a table per record, columns as in `driftscope.trace.format.records`."""

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
    problems += [f"{each.source} recorded nothing: {each.reason}" for each in read_faults(run)]
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
        rows = read_rows(path, record, problems, bins=bins)
        by_rank[place.rank].append(with_replica(rows, place))
    if not by_rank:
        return conform(pa.table({}), record)
    return joined(record, {rank: pa.concat_tables(t) for rank, t in by_rank.items()}, problems)


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
        check_rows(rows, record, bins)
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
    return content.table


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
