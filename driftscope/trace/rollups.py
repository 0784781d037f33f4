"""Rollups: sums of rounds by minute, as Parquet files in a folder or an object store.

One file holds one run's sums of one day (UTC), and a later export of the run replaces it:
FOLDER/2026-11-28/RUN-2026-11-28.rollup.parquet. Any query engine reads them without driftscope:
`rounds` of depth 1 are the rounds, and the rate at a depth is sum(accepted) / sum(rounds).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from driftscope.boundary.bounds import MAX_K, MAX_TEXT_CHARS
from driftscope.boundary.files import first_line, write_file
from driftscope.errors import DamagedTraceError, NotATraceError, TraceError
from driftscope.trace.runs import ROLLUP, uri_of

KINDS = ("model", "drafter", "adapter", "label", "region", "context")
"""Columns that tell kinds of rounds apart: region is the kind of text that a round drafts, context
the power of two at or below its length."""
SCHEMA = pa.schema(
    [
        pa.field("minute", pa.timestamp("ms", tz="UTC"), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in ("replica", *KINDS[:-1])),
        pa.field("context", pa.int64(), nullable=False),
        pa.field("depth", pa.int64(), nullable=False),
        pa.field("rounds", pa.int64(), nullable=False),
        pa.field("accepted", pa.int64(), nullable=False),
    ]
)
"""Columns: `rounds` verified this depth, and `accepted` of them accepted tokens up to it."""
MOST_ROWS, MOST_FILES, MOST_ROUNDS = 1 << 22, 100_000, 1 << 30
"""Rows of a file (a day of one replica with 500 kinds of rounds a minute, at 5 depths), files of a
folder, and rounds of a minute."""
_DAY, _DAY_MS = "%Y-%m-%d", 86_400_000
_LAST_MS = 253_402_300_799_000
"""End of the year 9999."""


@contextmanager
def _store(path: Path) -> Iterator[tuple[fs.FileSystem, str]]:
    """Yield the file system of a path, and the folder in it; errors of either become a
    TraceError."""
    uri = uri_of(path)
    try:
        yield fs.FileSystem.from_uri(uri) if uri else (fs.LocalFileSystem(), str(path.absolute()))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TraceError(
            f"{uri or path}: the folder or object store cannot be used ({first_line(error)}); "
            "check the address, the credentials and the network"
        ) from error


def write_rollups(folder: Path, run: str, rows: pa.Table) -> list[str]:
    """Write the rows of a run, one file for each day, and return their paths. A file of the same
    `run` and day is replaced as a whole. Raises TraceError."""
    written = []
    with _store(folder) as (store, root):
        number = pc.divide(rows.column("minute").cast(pa.int64()), _DAY_MS)
        for at in sorted(pc.unique(number).to_pylist()):
            day = datetime.fromtimestamp(at * _DAY_MS / 1000, UTC).strftime(_DAY)
            sink = pa.BufferOutputStream()
            pq.write_table(rows.filter(pc.equal(number, at)), sink, compression="zstd")
            name = f"{re.sub('[^A-Za-z0-9._-]', '_', run)[-120:]}-{day}{ROLLUP}"
            target, content = f"{root.rstrip('/')}/{day}/{name}", sink.getvalue()
            if isinstance(store, fs.LocalFileSystem):
                write_file(Path(target), content.to_pybytes(), parents=True)
            else:  # an object appears as a whole when its stream is closed
                with store.open_output_stream(target) as stream:
                    stream.write(content)
            written.append(f"{uri_of(folder) or folder}/{day}/{name}")
    return written


def read_rollups(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of each file of a folder of rollups.

    Raises TraceError for a store that cannot be used, NotATraceError without a file, and
    DamagedTraceError for a file that no driftscope writes, or that is there twice.
    """
    with _store(path) as (store, root):
        selector = fs.FileSelector(root, recursive=True)
        found = sorted(
            info.path
            for info in store.get_file_info(selector)
            if info.type is fs.FileType.File and info.path.endswith(ROLLUP)
        )
    if not 0 < len(found) <= MOST_FILES:
        raise NotATraceError(
            f"{path}: holds {len(found):,} rollups; write some with `driftscope export RUN "
            "--format rollup -o FOLDER`, and give one day's folder"
        )
    names: dict[str, str] = {}
    for file in found:
        if (other := names.setdefault(file.rpartition("/")[2], file)) != file:
            raise DamagedTraceError(
                f"{file}: the same rollup as {other}, which would count twice; move one away"
            )
        yield _rows(store, file)


def _rows(store: fs.FileSystem, file: str) -> pa.Table:
    try:
        with store.open_input_file(file) as stream, pq.ParquetFile(stream) as content:
            if content.metadata.num_rows > MOST_ROWS:
                raise ValueError(f"holds {content.metadata.num_rows:,} rows")
            known = {field.name: field.type for field in content.schema_arrow}
            wrong = [field.name for field in SCHEMA if known.get(field.name) != field.type]
            if wrong:
                raise ValueError(f"column {wrong[0]!r} is missing or of another type")
            rows = content.read(columns=SCHEMA.names)
        if fault := _fault(rows):
            raise ValueError(fault)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedTraceError(
            f"{file}: is no rollup ({first_line(error)}); export its run again, or move it away"
        ) from error
    return rows


def _fault(rows: pa.Table) -> str:
    """Return what is wrong with the rows of a file; "" if nothing is."""
    for name in SCHEMA.names:
        if rows.column(name).null_count:
            return f"column {name!r} has a value missing"
    if not rows.num_rows:
        return "it has no rows"
    bounds = {
        "minute": (0, _LAST_MS),
        "context": (1, MOST_ROUNDS),
        "depth": (1, MAX_K),
        "rounds": (1, MOST_ROUNDS),
        "accepted": (0, MOST_ROUNDS),
    }
    for name, (low, high) in bounds.items():
        ends = pc.min_max(rows.column(name).cast(pa.int64())).as_py()
        if ends["min"] < low or ends["max"] > high:
            return f"{name} from {ends['min']} to {ends['max']}, outside {low} to {high}"
    if pc.any(pc.greater(rows.column("accepted"), rows.column("rounds"))).as_py():
        return "accepted is above the rounds that verified the depth"
    longest = (pc.max(pc.utf8_length(rows.column(n))).as_py() for n in ("replica", *KINDS[:-1]))
    return "a name is too long" if max(longest) > MAX_TEXT_CHARS else ""
