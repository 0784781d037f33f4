"""The record files of a run: names, and which of them count.

A segment is `<record>-<source>-<number>.arrows` (Arrow IPC stream) while written and `.parquet`
(zstd, see `driftscope.trace.compact`) once sealed. While sealing both exist: the Parquet file
appears whole, by rename, before the stream is removed, so it is the one to read.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from driftscope.trace.compact import compact, encodings

STREAM = ".arrows"
SEALED = ".parquet"
ZSTD_LEVEL = 9
"""Of what is no noise, the default level leaves a tenth more."""
VERSION_KEY = b"driftscope.schema_version"


def segment_path(run: Path, record: str, source: str, number: int) -> Path:
    """Path of a segment while it is written."""
    return run / f"{record}-{source}-{number:04d}{STREAM}"


def source_of(path: Path, record: str) -> str:
    """The source that wrote the segment at `path`."""
    return path.stem.removeprefix(f"{record}-").rpartition("-")[0]


def segments(run: Path, record: str) -> list[Path]:
    """Every segment of a record to read, in order of source and number."""
    # Streams first: one that is sealed between the two looks is then seen twice, never not at all.
    streams = {p.stem: p for p in run.glob(f"{record}-*{STREAM}")}
    sealed = {p.stem: p for p in run.glob(f"{record}-*{SEALED}")}
    return [path for _, path in sorted({**streams, **sealed}.items())]


def seal(stream: Path) -> Path:
    """Rewrite a finished stream as Parquet, then remove it; returns the new path."""
    target = stream.with_suffix(SEALED)
    partial = stream.with_suffix(".partial")
    with pa.memory_map(str(stream)) as source:
        write_sealed(pa.ipc.open_stream(source).read_all(), partial)
    with partial.open("rb") as handle:
        os.fsync(handle.fileno())
    partial.replace(target)
    stream.unlink()
    return target


def write_sealed(table: pa.Table, path: Path, *, level: int = ZSTD_LEVEL) -> None:
    """Write the rows of a finished stream as Parquet; a lower `level` is faster and larger.

    Of a file's steps the range is told, so that who looks for some need not read them all.
    """
    table = compact(table)
    pq.write_table(
        table, path, compression="zstd", compression_level=level, write_statistics=["step"],
        **encodings(table),
    )  # fmt: skip
