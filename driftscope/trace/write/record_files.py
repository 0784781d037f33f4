"""The open record files of one process: appends batches, limits disk use, seals full segments."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from driftscope.trace.format.record_stream import StreamFile
from driftscope.trace.format.records import SCHEMA_VERSION, Row
from driftscope.trace.format.row_block import Block
from driftscope.trace.format.schema import record_of, schema_of, to_batch
from driftscope.trace.format.segment import VERSION_KEY, digest_of, next_number, seal, segment_path

SEGMENT_BYTES = 64 << 20
"""Size in bytes at which a stream is sealed to Parquet, so that sealing takes little time."""


Batch = tuple[str, pa.RecordBatch]
"""Name of a record and rows of it."""


def batches_of(rows: Iterable[Row | Block]) -> Iterator[Batch]:
    """Yield one batch per record, then one per block; raises for a value that does not fit."""
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
    """The limit on the process's record files has been reached."""


class RecordFiles:
    """Segments of every record of one source, at most `max_bytes` on disk in total."""

    def __init__(self, run: Path, source: str, max_bytes: int) -> None:
        self._run, self._source, self._max_bytes = run, source, max_bytes
        self._open: dict[str, StreamFile] = {}
        self._number: dict[str, int] = {}
        """Number of the next segment of each record whose segments on disk have been listed."""
        self._sealed_bytes = 0
        self.rows: Counter[str] = Counter()
        """Rows written, by record."""
        self.digests: dict[str, str] = {}
        """CRC-32 of each sealed file, by name."""
        self.last_write_s: float | None = None
        """Unix time of the last append."""

    def append(self, rows: Iterable[Row | Block]) -> None:
        """Write and flush one batch per record and block; raises DiskLimitError or OSError."""
        self.write(batches_of(rows))

    def write(self, batches: Iterable[Batch]) -> None:
        """Write and flush each of `batches`; raises the same errors as `append`."""
        if self._sealed_bytes + sum(s.size for s in self._open.values()) >= self._max_bytes:
            raise DiskLimitError
        for record, batch in batches:
            self._write(record, batch)
        self.last_write_s = time.time()

    def seal(self) -> None:
        """Close every open stream and rewrite it as Parquet.

        Raises the first error after all streams have been tried. A stream that could not be
        rewritten stays, and readers read it.
        """
        errors: list[Exception] = []
        for record in list(self._open):
            try:
                self._seal(record)
            except (OSError, ValueError, pa.ArrowException) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _write(self, record: str, batch: pa.RecordBatch) -> None:
        try:
            self._segment(record).append(batch)
        except OSError:
            # A torn write ends the stream for readers: later rows go to a new stream.
            if torn := self._open.pop(record, None):
                torn.abandon()
            raise
        self.rows[record] += batch.num_rows
        if self._open[record].size >= SEGMENT_BYTES:
            self._seal(record)

    def _segment(self, record: str) -> StreamFile:
        if record not in self._open:
            if record not in self._number:
                self._number[record] = next_number(self._run, record, self._source)
            path = segment_path(self._run, record, self._source, self._number[record])
            self._number[record] += 1
            schema = schema_of(record).with_metadata({VERSION_KEY: SCHEMA_VERSION.encode()})
            self._open[record] = StreamFile(path, schema)
        return self._open[record]

    def _seal(self, record: str) -> None:
        stream = self._open.pop(record)
        self._sealed_bytes += stream.size
        stream.close()
        sealed = seal(stream.path)
        self._sealed_bytes += sealed.stat().st_size - stream.size
        self.digests[sealed.name] = digest_of(sealed)
