"""Writes an Arrow stream of one record, and reads the intact parts of a stream."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from driftscope.boundary.bounds import MAX_STREAM_BYTES
from driftscope.boundary.files import create_file, first_line, read_bytes, write_all
from driftscope.trace.format.batch_digest import (
    END,
    first_is_torn,
    intact_messages,
    with_digest,
)


class StreamFile:
    """A stream that batches are appended to, each with its digest in one write."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Raises OSError if the file exists already or cannot be created."""
        self.path = path
        self.size = 0
        """Number of bytes written."""
        self._batches = 0
        self._file = create_file(path)
        try:
            self._write(schema.serialize())
        except OSError:
            self.abandon()
            raise

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch; raises OSError, after which the file may end in a torn batch."""
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "the file was removed", str(self.path))
        self._write(batch.serialize())
        self._batches += 1

    def close(self) -> None:
        """End the stream and wait until it is on disk; raises OSError, but closes it anyway."""
        try:
            write_all(self._file, [END])
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def abandon(self) -> None:
        """Give up after a failed write; a file without a complete batch is removed."""
        with suppress(OSError):
            os.close(self._file)
        if not self._batches:
            with suppress(OSError):
                self.path.unlink()

    def _write(self, message: pa.Buffer) -> None:
        parts = with_digest(message)
        write_all(self._file, parts)
        self.size += sum(len(part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContent:
    """The readable content of a stream."""

    table: pa.Table
    """Rows of every intact batch."""
    torn: bool = False
    """Whether the stream ends in an unfinished write, as after a kill."""
    damaged: tuple[int, ...] = ()
    """Damaged stretches: for each, the number of intact rows before it."""


def read_stream(path: Path) -> StreamContent:
    """Read the intact batches of a stream.

    A stream that ends before its columns are complete has no rows. Raises OSError, and ValueError
    for a file that is not an Arrow stream with digests.
    """
    content = read_bytes(path, limit=MAX_STREAM_BYTES)
    if not content:
        return StreamContent(table=pa.table({}))
    if first_is_torn(content):
        return StreamContent(table=pa.table({}), torn=True)
    try:
        return _digested(content)
    except (pa.ArrowException, EOFError) as error:
        raise ValueError(first_line(error)) from error


def _digested(content: bytes) -> StreamContent:
    schema, rows, last_is_gap = None, 0, False
    batches: list[pa.RecordBatch] = []
    gaps: list[int] = []
    for message in intact_messages(content):
        last_is_gap = message is None
        if message is None:
            gaps.append(rows)
        elif message.type == "schema":
            schema = pa.ipc.read_schema(message)
        elif schema is not None:
            batches.append(_valid(pa.ipc.read_record_batch(message, schema)))
            rows += batches[-1].num_rows
    if schema is None:
        raise ValueError("its header, which holds the columns, is damaged")
    torn = last_is_gap and not content.endswith(END)
    return StreamContent(
        table=pa.Table.from_batches(batches, schema),
        torn=torn,
        damaged=tuple(gaps[:-1] if torn else gaps),
    )


def _valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Validate a batch: Arrow trusts offsets and lengths, and a wrong one crashes later."""
    batch.validate(full=True)
    return batch
