"""Writes an Arrow stream of one record, and reads the intact parts of a stream.

Each message has a checksum, so that a flipped bit does not go unnoticed. A message of the Arrow
IPC format is `FFFFFFFF`, the length of its metadata, the metadata and a body. Readers of the format
find what they need from the start of the metadata and ignore the rest of its length. The digest is
stored there: 8 bytes that every other Arrow reader skips.
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from driftscope.boundary.bounds import MAX_STREAM_BYTES
from driftscope.boundary.files import create_file, first_line, read_bytes, write_all

END = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of a stream that was closed."""
_CONTINUATION = END[:4]
_ALIGNMENT = 8
"""Alignment of messages: they begin at multiples of it, in bytes."""
_MARK = b"DSc1"
_HEAD = struct.Struct("<4si")
_DIGEST = struct.Struct("<4sI")

Bytes = memoryview | bytes


def with_digest(message: pa.Buffer) -> Sequence[Bytes]:
    """Return the bytes of a serialised message with its digest, in pieces to be written in order.

    `message` is the result of `pyarrow.Schema.serialize` or `pyarrow.RecordBatch.serialize`.
    """
    view = memoryview(message)
    _, length = _HEAD.unpack_from(view)
    head = _HEAD.pack(_CONTINUATION, length + _DIGEST.size)
    metadata, body = view[_HEAD.size : _HEAD.size + length], view[_HEAD.size + length :]
    return head, metadata, _DIGEST.pack(_MARK, _crc((head, metadata, body))), body


def first_is_torn(content: bytes) -> bool:
    """Return whether a stream ends within its first message, as after a kill."""
    if len(content) < _HEAD.size:
        return _CONTINUATION.startswith(content[: len(_CONTINUATION)])
    continuation, length = _HEAD.unpack_from(content)
    return (
        continuation == _CONTINUATION
        and length > len(content) - _HEAD.size
        and _next(content, _HEAD.size) == len(content)
    )


def intact_messages(content: bytes) -> Iterator[pa.Message | None]:
    """Yield each message whose bytes match its digest, and None for each stretch of other bytes
    between two messages or at the end of the stream."""
    start, damaged = 0, False
    while start < len(content) and not content.startswith(END, start):
        message, end = _message(content, start)
        if message is None:
            damaged = True
            start = _next(content, start + 1)
            continue
        if damaged:
            yield None
        yield message
        start, damaged = end, False
    if damaged:
        yield None


def _next(content: bytes, start: int) -> int:
    """Return the offset at which the next message may begin."""
    at = content.find(_CONTINUATION, start)
    while at >= 0 and at % _ALIGNMENT:
        at = content.find(_CONTINUATION, at + 1)
    return at if at >= 0 else len(content)


def _message(content: bytes, start: int) -> tuple[pa.Message | None, int]:
    """Return the message at `start` and its end; None if its bytes do not match a digest."""
    cut = _metadata_end(content, start)
    if cut is None or (digest := _digest_before(content, cut)) is None:
        return None, start
    source = pa.BufferReader(pa.py_buffer(content).slice(start))
    try:
        message = pa.ipc.read_message(source)
    except (pa.ArrowException, OSError, EOFError, ValueError):  # a torn end, or no metadata
        return None, start
    end = start + source.tell()
    view = memoryview(content)
    intact = _crc((view[start : cut - _DIGEST.size], view[cut:end])) == digest
    return (message, end) if intact else (None, start)


def _metadata_end(content: bytes, start: int) -> int | None:
    """Return where the metadata of the message at `start` ends; None if no message begins there."""
    begin = start + _HEAD.size
    if begin > len(content):
        return None
    continuation, length = _HEAD.unpack_from(content, start)
    if continuation != _CONTINUATION or not _DIGEST.size < length <= len(content) - begin:
        return None
    return begin + int(length)


def _digest_before(content: bytes, end: int) -> int | None:
    mark, digest = _DIGEST.unpack_from(content, end - _DIGEST.size)
    return int(digest) if mark == _MARK else None


def _crc(parts: Iterable[Bytes]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


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
        """End the stream; raises OSError, but closes it anyway. Sealing waits for the disk."""
        try:
            write_all(self._file, [END])
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
