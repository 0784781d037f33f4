"""The record files of a run: their names, which of them to read, and the form of a sealed one.

A segment is `<record>-<source>-<number>.arrows` (Arrow IPC stream) while it is written and
`.parquet` (zstd) once sealed. During sealing both exist. The Parquet file appears as a whole, by
rename, before the stream is removed, so it is the one to read. A stream is exact. A sealed file
differs from it in three points:

- measured floats (every float list, the durations of a step, `fc_rms`) keep 16 bits of their
  mantissa: a relative error of at most 2^-17, far below the resolution of any figure;
- times are whole microseconds, as Parquet timestamps;
- a list that follows from others in every row of the segment is left out. The state fed forward
  equals the state before or after the norm, and the state that enters a depth equals the one that
  the previous depth fed, both bit for bit. The mass on verified output is 1 minus the other classes
  (restored with an absolute error of at most 1e-5). The columns left out are listed in the file's
  metadata under DERIVED_KEY.

A process notes the CRC-32 of each file that it seals in its status. A file without one, sealed just
before a kill, is accepted as it is; its Parquet pages have their own checksums, which are verified
whenever a file is read as a whole.

Each message of a stream has a checksum, so that a flipped bit does not go unnoticed: 8 bytes after
the metadata of the message, which other Arrow readers skip
(https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format).
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from driftscope.boundary.bounds import (
    MAX_EXPANSION,
    MAX_ROW_GROUP_BYTES,
    MAX_ROWS_PER_BYTE,
    MAX_STREAM_BYTES,
    SMALL_FILE_BYTES,
    SMALL_FILE_ROWS,
)
from driftscope.boundary.files import (
    UnfitFileError,
    create_file,
    first_line,
    open_regular,
    parse_json,
    read_bytes,
    sync,
    temporary_path,
    write_all,
)
from driftscope.boundary.text import dumps
from driftscope.trace.records import RECORDS
from driftscope.trace.schema import lengths_of, lists_of, numbers_of, validity_of, with_validity
from driftscope.trace.status import Status
from driftscope.vocabulary import GENERATED_MASS, MASSES

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
        schema, rows, last_is_gap = None, 0, False
        batches: list[pa.RecordBatch] = []
        gaps: list[int] = []
        for message in intact_messages(content):
            last_is_gap = message is None
            if message is None:
                gaps.append(rows)
            elif message.type == "schema" and schema is not None:
                raise ValueError("it has a second header: it was put together of several files")
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
    except (pa.ArrowException, EOFError) as error:
        raise ValueError(first_line(error)) from error


def _valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Validate a batch: Arrow trusts offsets and lengths, and a wrong one crashes later."""
    batch.validate(full=True)
    return batch


KEPT_BITS = 16
"""Number of mantissa bits that are kept, of 23 or 52."""
RELATIVE_ERROR = 2.0 ** -(KEPT_BITS + 1)
"""Largest relative error of a rounded number."""

Floating = TypeVar("Floating", NDArray[np.float32], NDArray[np.float64])


def rounded(values: Floating) -> Floating:
    """Return `values`, float32 or float64, rounded to KEPT_BITS, ties to even.

    Values that cannot be rounded within RELATIVE_ERROR stay unchanged: subnormal numbers, numbers
    that would become infinite, and non-finite values.
    """
    info: Any = np.finfo(values.dtype)
    kind: Any = np.dtype(f"u{values.dtype.itemsize}").type
    bits, spare = values.view(kind), kind(info.nmant - KEPT_BITS)
    one = kind(1)
    half_less = (one << (spare - one)) - one
    even = half_less + ((bits >> spare) & one)
    near = ((bits + even) >> spare << spare).view(values.dtype)
    normal = np.isfinite(values) & (np.abs(values) >= info.tiny) & np.isfinite(near)
    return np.where(normal, near, values)


DERIVED_KEY = b"driftscope.derived"
"""Metadata key of a JSON object: column left out -> its source."""
COMPLEMENT_WITHIN = 1e-6
"""Largest deviation from 1 of the sum of all masses: float32 sums of a few thousand terms."""
MICROSECONDS = 1_000_000
TIMES = ("time_s", "arrival_s")
_LATEST_S = 2**53 / MICROSECONDS
"""Largest time, in seconds, at which a float64 still represents microseconds."""
MEASURED = ("fc_rms", "step_s", "draft_s", "probe_s", "gpu_draft_s", "gpu_probe_s")
_STATES = ("prenorm_rms", "postnorm_rms")
_OTHER_MASSES = tuple(name for name in MASSES if name != GENERATED_MASS)
_FLOAT_LIST = pa.list_(pa.float32())
_TIMESTAMP = pa.timestamp("us")


def compact(table: pa.Table) -> pa.Table:
    """Return `table`, of any record, in the form in which its segment is sealed."""
    derived = _derived(table)
    metadata = dict(table.schema.metadata or {})
    if derived:
        metadata[DERIVED_KEY] = dumps(derived, sort_keys=True).encode()
    kept = [name for name in table.column_names if name not in derived]
    columns = {name: _coarser(name, table.column(name)) for name in kept}
    return pa.table(columns).replace_schema_metadata(metadata)


def derived_of(schema: pa.Schema) -> Mapping[str, str]:
    """Return the source of each column that a sealed file leaves out, by column name.

    Raises ValueError for metadata that no recorder writes.
    """
    derived = parse_json((schema.metadata or {}).get(DERIVED_KEY, b"{}"))
    if not isinstance(derived, dict) or not derived.keys() <= _RESTORED.keys():
        raise ValueError(f"{DERIVED_KEY.decode()} in its metadata is not what driftscope writes")
    if not all(isinstance(name, str) and name in _SOURCES for name in derived.values()):
        raise ValueError(f"{DERIVED_KEY.decode()} in its metadata names an unknown column")
    return derived


def restore(table: pa.Table) -> pa.Table:
    """Return a sealed `table` with the columns of the stream that it was made from.

    Raises KeyError or ValueError for metadata that does not fit the columns.
    """
    derived = derived_of(table.schema)
    columns = {name: _seconds(table.column(name)) for name in table.column_names}
    if derived:
        _check_types(columns)
    for name in _ORDER:
        if name in derived:
            columns[name] = _RESTORED[name](columns, derived[name])
    return pa.table(columns)


def _check_types(columns: Mapping[str, pa.Array]) -> None:
    """Raise ValueError if a source column has another type than a recorder writes."""
    for name in (*_STATES, *_OTHER_MASSES, "fed_rms", "in_rms"):
        if name in columns and columns[name].type != _FLOAT_LIST:
            raise ValueError(f"{name} holds {columns[name].type}")
    if "fc_rms" in columns and columns["fc_rms"].type != pa.float64():
        raise ValueError(f"fc_rms holds {columns['fc_rms'].type}")


def encodings(table: pa.Table) -> dict[str, Any]:
    """Return arguments of `write_table` that set Parquet's encoding of a compact table."""
    explicit = {}
    for f in table.schema:
        if pa.types.is_list(f.type) and pa.types.is_floating(f.type.value_type):
            explicit[f"{f.name}.list.element"] = "BYTE_STREAM_SPLIT"
        elif f.name in MEASURED:
            explicit[f.name] = "BYTE_STREAM_SPLIT"
        elif f.type == _TIMESTAMP or f.name in ("step", "position"):
            explicit[f.name] = "DELTA_BINARY_PACKED"
    plain = {path.partition(".")[0] for path in explicit}
    return {
        "column_encoding": explicit,
        "use_dictionary": [name for name in table.column_names if name not in plain],
    }


def _derived(table: pa.Table) -> dict[str, str]:
    """Return the columns that follow from others in every row, with their sources."""
    if "fed_rms" not in table.column_names or not table.num_rows:
        return {}
    columns = {f.name: table.column(f.name).combine_chunks() for f in table.schema}
    derived = {}
    for state in _STATES:
        if _same(columns["fed_rms"], columns[state]):
            derived["fed_rms"] = state
    if _is_float32(columns["fc_rms"]) and _same(columns["in_rms"], _shifted(columns)):
        derived["in_rms"] = "fed_rms"
    if _is_complement(columns):
        derived["generated_mass"] = "complement"
    return derived


def _same(a: pa.ListArray, b: pa.ListArray) -> bool:
    """Return whether lists, nulls and NaN are identical, bit for bit."""
    return _same_shape(a, b) and np.array_equal(_bits(_floats(a)), _bits(_floats(b)))


def _same_shape(a: pa.ListArray, b: pa.ListArray) -> bool:
    return a.is_valid().equals(b.is_valid()) and np.array_equal(lengths_of(a), lengths_of(b))


def _is_float32(column: pa.Array) -> bool:
    values = numbers_of(column.drop_null())
    with np.errstate(over="ignore"):
        return np.array_equal(values, values.astype(np.float32), equal_nan=True)


def _shifted(columns: dict[str, pa.Array]) -> pa.ListArray:
    """Return the fc output, followed by all but the last element of `fed_rms`."""
    fed = columns["fed_rms"]
    lengths = lengths_of(fed)
    starts = np.cumsum(lengths) - lengths
    with np.errstate(over="ignore"):
        fc = np.where(validity_of(columns["fc_rms"]), numbers_of(columns["fc_rms"]), np.nan)
        first = fc.astype(np.float32)
    shifted = np.roll(_floats(fed), 1)
    shifted[starts[lengths > 0]] = first[lengths > 0]
    return _with_values(fed, shifted)


def _is_complement(columns: dict[str, pa.Array]) -> bool:
    generated = columns["generated_mass"]
    others = _recorded_masses(columns)
    if not others or not all(_same_shape(generated, other) for other in others):
        return False
    off = np.abs(_floats(generated).astype(np.float64) - _remaining_mass(others))
    return bool((off <= COMPLEMENT_WITHIN).all())


def _complement(columns: dict[str, pa.Array]) -> pa.ListArray:
    others = _recorded_masses(columns)
    if not others:
        raise ValueError("the other masses, from which generated_mass is derived, are missing")
    left = np.maximum(_remaining_mass(others), 0.0)
    return _with_values(others[0], left.astype(np.float32))


def _recorded_masses(columns: dict[str, pa.Array]) -> list[pa.ListArray]:
    """Return the masses of the other classes, without classes that are null in every row."""
    masses = [columns[name] for name in _OTHER_MASSES]
    return [column for column in masses if column.null_count < len(column) or not len(column)]


def _remaining_mass(others: list[pa.ListArray]) -> NDArray[np.float64]:
    """Return 1 minus the other masses; a class that does not apply counts as 0."""
    masses = [_floats(other).astype(np.float64) for other in others]
    return np.asarray(1.0 - np.nansum(masses, axis=0))


def _coarser(name: str, column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if array.type == _FLOAT_LIST:
        return _with_values(array, rounded(_floats(array)))
    if name in TIMES:
        # Seconds as timestamps, or unchanged if any of them cannot be converted.
        values = numbers_of(array)
        if array.null_count or not (np.abs(values) < _LATEST_S).all():
            return array
        return with_validity(np.rint(values * MICROSECONDS).astype(np.int64)).cast(_TIMESTAMP)
    if name in MEASURED:
        numbers = numbers_of(array)
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float32)
        both = np.asarray(narrow == numbers)
        return with_validity(
            np.where(both, rounded(narrow).astype(np.float64), rounded(numbers)), validity_of(array)
        )
    return array


def _seconds(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if not pa.types.is_timestamp(array.type):
        return array
    whole = numbers_of(array.cast(_TIMESTAMP).cast(pa.int64()))
    return with_validity(whole / MICROSECONDS, validity_of(array))


def _floats(lists: pa.ListArray) -> NDArray[np.float32]:
    return numbers_of(lists.flatten())


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return values.view(np.uint32)


def _with_values(lists: pa.ListArray, values: NDArray[np.float32]) -> pa.ListArray:
    """Return lists with the lengths and the nulls of `lists`."""
    return lists_of(values, lengths_of(lists), validity_of(lists))


_RESTORED: dict[str, Callable[[dict[str, pa.Array], str], pa.Array]] = {
    "fed_rms": lambda columns, state: columns[state],
    "in_rms": lambda columns, _: _shifted(columns),
    "generated_mass": lambda columns, _: _complement(columns),
}
_SOURCES = frozenset({*_STATES, "fed_rms", "complement"})
"""Sources that a column can follow from."""
_ORDER = ("fed_rms", "in_rms", "generated_mass")
"""Order of restoration: in_rms follows from fed_rms, which may itself have been left out."""


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
    numbers = [
        int(number)
        for path in run.iterdir()
        if path.suffix in (STREAM, SEALED) and path.name.startswith(f"{record}-")
        if source_of(path, record) == source
        if (number := path.stem.rpartition("-")[2]).isdecimal()
    ]
    return max(numbers, default=-1) + 1


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


@contextmanager
def open_parquet(path: Path, *, checksums: bool = False) -> Iterator[pq.ParquetFile]:
    """Open a sealed file; only its footer is read before its sizes have been checked.

    `checksums`: verify each page's checksum as it is read. Raises OSError, including its subclass
    UnfitFileError for sizes that no recorder writes, and pyarrow.ArrowException.
    """
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        with os.fdopen(os.dup(descriptor), "rb") as handle:
            try:
                file = pq.ParquetFile(handle, page_checksum_verification=checksums)
                # Refuse a file that would take far more memory than its size suggests.
                if file.metadata.num_rows > SMALL_FILE_ROWS + MAX_ROWS_PER_BYTE * size:
                    raise _unfit(path, f"holds {file.metadata.num_rows} rows in {size} bytes")
                most = SMALL_FILE_BYTES + MAX_EXPANSION * size
                for group in range(file.metadata.num_row_groups):
                    # Not each column: reading its damaged metadata would crash the process.
                    size_in_memory = file.metadata.row_group(group).total_byte_size
                    if size_in_memory > min(most, MAX_ROW_GROUP_BYTES):
                        raise _unfit(path, f"grows from {size} to {size_in_memory} bytes")
                _ = file.schema_arrow.names
            except (ValueError, RuntimeError) as error:  # damaged names, damaged metadata
                raise UnfitFileError(errno.EINVAL, first_line(error), str(path)) from error
            yield file


def _unfit(path: Path, words: str) -> UnfitFileError:
    return UnfitFileError(errno.EFBIG, f"{words}, which the recorder never writes", str(path))


def damaged_files(run: Path, statuses: Iterable[Status]) -> Mapping[Path, str]:
    """Return the sealed files whose bytes have changed since, and copies of other files, each with
    a sentence. Raises OSError for a file that cannot be read."""
    noted = {name: digest for status in statuses for name, digest in status.digests.items()}
    files = {run / name: digest for name, digest in noted.items() if name == Path(name).name}
    damaged = {
        path: f"{path.name} is damaged: the file is left out"
        for path, digest in sorted(files.items())
        if path.is_file() and (path.stat().st_size > MAX_STREAM_BYTES or digest_of(path) != digest)
    }
    alike = defaultdict[tuple[str, str, int], list[Path]](list)
    for record in RECORDS:
        for path in segments(run, record):
            size = path.stat().st_size if path.is_file() and path not in damaged else 0
            if 0 < size <= MAX_STREAM_BYTES:
                role = source_of(path, record).rpartition("-")[0]
                alike[record, role, size].append(path)
    for paths in alike.values():
        originals: dict[str, Path] = {}
        # A file that a status notes is no copy.
        for path in sorted(paths, key=lambda path: path not in files) if len(paths) > 1 else ():
            original = originals.setdefault(digest_of(path), path)
            if original != path and path not in files:
                damaged[path] = f"{path.name} is a copy of {original.name}: the file is left out"
    return damaged


def miscounted(run: Path, statuses: Iterable[Status], left_out: Container[Path]) -> Iterator[str]:
    """Yield in words which files are of no process of the run, and where sealed files hold fewer
    rows than the status of their source counts. Raises what `open_parquet` raises."""
    held, unknown = Counter[tuple[str, str]](), set[tuple[str, str]]()
    sources = {status.source: status for status in statuses}
    for record in RECORDS:
        for path in segments(run, record):
            key = source_of(path, record), record
            if path in left_out or path.suffix != SEALED:
                unknown.add(key)
            else:
                with open_parquet(path) as file:
                    held[key] += file.metadata.num_rows
            if sources and key[0] not in sources and path not in left_out:
                yield f"{path.name} is of a process that has no status: is it another run's?"
    for source, status in sources.items():
        for record, rows in status.rows.items():
            key = source, record
            if record in RECORDS and key not in unknown and held[key] < rows:
                yield f"{source} wrote {rows} {record} rows, and its files hold {held[key]}"
