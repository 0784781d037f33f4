"""The record files of a run: their names, and which of them to read.

A segment is `<record>-<source>-<number>.arrows` (Arrow IPC stream) while it is written and
`.parquet` (zstd, see `driftscope.trace.format.derived_columns`) once sealed. During sealing both
exist. The Parquet file appears as a whole, by rename, before the stream is removed, so it is the
one to read.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from driftscope.boundary.files import open_regular, sync, temporary_path
from driftscope.trace.format.derived_columns import compact, encodings
from driftscope.trace.format.record_stream import read_stream

STREAM = ".arrows"
SEALED = ".parquet"
ZSTD_LEVEL = 9
"""Compression level; at the default level, data that is not noise takes a tenth more space."""
VERSION_KEY = b"driftscope.schema_version"


def segment_path(run: Path, record: str, source: str, number: int) -> Path:
    """Return the path of a segment while it is written."""
    return run / f"{record}-{source}-{number:04d}{STREAM}"


def next_number(run: Path, record: str, source: str) -> int:
    """Return the number after the last segment of a record that `source` has, open or sealed.

    A killed process may have had the same source, because containers restart the numbering of
    processes. Its sealed files must not be replaced. Raises OSError.
    """
    taken = [
        int(number)
        for path in run.iterdir()
        if path.suffix in (STREAM, SEALED) and path.name.startswith(f"{record}-")
        if source_of(path, record) == source
        if (number := path.stem.rpartition("-")[2]).isdecimal()
    ]
    return max(taken, default=-1) + 1


def source_of(path: Path, record: str) -> str:
    """Return the source that wrote the segment at `path`."""
    return path.stem.removeprefix(f"{record}-").rpartition("-")[0]


def segments(run: Path, record: str) -> list[Path]:
    """Return every segment of a record to read, in order of source and number."""
    # List streams before sealed files: a file sealed between the two calls is then listed twice,
    # never missed.
    streams = {p.stem: p for p in run.glob(f"{record}-*{STREAM}")}
    sealed = {p.stem: p for p in run.glob(f"{record}-*{SEALED}")}
    return [path for _, path in sorted({**streams, **sealed}.items())]


def seal(stream: Path) -> Path:
    """Rewrite a finished stream as Parquet, then remove the stream; return the new path.

    Raises OSError or ValueError, and keeps the stream, if a part of it is not as it was written.
    """
    content = read_stream(stream)
    if content.torn or content.damaged:
        raise ValueError(f"{stream}: damaged, so it is not sealed")
    target = stream.with_suffix(SEALED)
    partial = temporary_path(target)
    try:
        write_sealed(content.table, partial)
        sync(partial)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    stream.unlink()
    return target


def write_sealed(table: pa.Table, path: Path, *, level: int = ZSTD_LEVEL) -> None:
    """Write the rows of a finished stream as Parquet; lower `level`: faster, larger file.

    Statistics are written for the `step` column only, so that a query for some steps need not read
    all rows. Every page has a checksum.
    """
    table = compact(table)
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=level,
        write_statistics=["step"],
        write_page_checksum=True,
        **encodings(table),
    )


def digest_of(path: Path) -> str:
    """Return the CRC-32 of a file's bytes as 8 hex digits; raises OSError."""
    checksum = 0
    with open_regular(path) as descriptor:
        while part := os.read(descriptor, _CHUNK):
            checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


_CHUNK = 1 << 22
