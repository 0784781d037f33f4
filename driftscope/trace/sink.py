"""The open record files of one process: append batches, bound the disk, seal what is full."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from driftscope.trace.block import Block
from driftscope.trace.records import Row
from driftscope.trace.schema import SCHEMA_VERSION, record_of, schema_of, to_batch
from driftscope.trace.segment import VERSION_KEY, seal, segment_path

SEGMENT_BYTES = 64 << 20
"""A stream is sealed to Parquet when it has grown to this size, so that sealing stays short."""


BUFFER_BYTES = 1 << 18
"""What is written at once: a batch, as a rule."""

Batch = tuple[str, pa.RecordBatch]
"""Rows of one record, and which."""


def batches_of(rows: Iterable[Row | Block]) -> Iterator[Batch]:
    """One batch per record, then one per block; raises for a value that does not fit."""
    by_record: defaultdict[str, list[Row]] = defaultdict(list)
    blocks = []
    for row in rows:
        if isinstance(row, Block):
            blocks.append(row)
        else:
            by_record[record_of(row)].append(row)
    for record, group in by_record.items():
        yield record, to_batch(record, group)
    for block in blocks:
        yield block.record, block.to_batch()


class DiskLimitError(Exception):
    """The bound on the process's record files is reached."""


class _Segment:
    """One open Arrow stream.

    Arrow's own files: to one of Python's it would write piece by piece, and wait for the serving
    process's interpreter before each.
    """

    def __init__(self, path: Path, record: str) -> None:
        metadata = {VERSION_KEY: SCHEMA_VERSION.encode()}
        self.path = path
        path.touch(exist_ok=False)
        self._file = pa.BufferedOutputStream(pa.OSFile(str(path), "wb"), BUFFER_BYTES)
        schema = schema_of(record).with_metadata(metadata)
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._batches = 0

    @property
    def size(self) -> int:
        return int(self._file.tell())

    def append(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._file.flush()
        self._batches += 1

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """Give up after a failed write; a file without a whole batch in it is removed."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._batches:
            with contextlib.suppress(OSError):
                self.path.unlink()


class RecordFiles:
    """Segments of every record of one source, at most `max_bytes` on disk together."""

    def __init__(self, run: Path, source: str, max_bytes: int) -> None:
        self._run, self._source, self._max_bytes = run, source, max_bytes
        self._open: dict[str, _Segment] = {}
        self._number: Counter[str] = Counter()
        self._sealed_bytes = 0
        self.rows: Counter[str] = Counter()
        """Rows written, by record."""
        self.last_write_s: float | None = None
        """Unix time of the last append."""

    def append(self, rows: Iterable[Row | Block]) -> None:
        """Write and flush one batch per record and block; raises DiskLimitError or OSError."""
        self.write(batches_of(rows))

    def write(self, batches: Iterable[Batch]) -> None:
        """Write and flush each of `batches`; raises as `append` does."""
        if self._sealed_bytes + sum(s.size for s in self._open.values()) >= self._max_bytes:
            raise DiskLimitError
        for record, batch in batches:
            self._write(record, batch)
        self.last_write_s = time.time()

    def seal(self) -> None:
        """Close every open stream and rewrite it as Parquet."""
        for record in list(self._open):
            self._seal(record)

    def _write(self, record: str, batch: pa.RecordBatch) -> None:
        try:
            self._segment(record).append(batch)
        except OSError:
            # A torn write ends the stream for readers: later rows go to a new one.
            if torn := self._open.pop(record, None):
                torn.abandon()
            raise
        self.rows[record] += batch.num_rows
        if self._open[record].size >= SEGMENT_BYTES:
            self._seal(record)

    def _segment(self, record: str) -> _Segment:
        if record not in self._open:
            path = segment_path(self._run, record, self._source, self._number[record])
            self._open[record] = _Segment(path, record)
            self._number[record] += 1
        return self._open[record]

    def _seal(self, record: str) -> None:
        segment = self._open.pop(record)
        segment.close()
        self._sealed_bytes += seal(segment.path).stat().st_size
