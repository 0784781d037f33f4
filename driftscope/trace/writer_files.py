"""A writer's work on a run directory: creates it and its manifest, appends record files within a
limit, seals full segments, and keeps a status file that can report a full disk even on that disk.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from driftscope.boundary.bounds import MAX_JSON_BYTES, MAX_ROWS_COUNTED
from driftscope.boundary.files import (
    PRIVATE_FILE,
    create_whole,
    locked,
    make_private_directory,
    read_bytes,
    read_json,
    remove_leftovers,
    write_all,
    write_file,
)
from driftscope.boundary.text import dumps
from driftscope.errors import DamagedTraceError, TraceError
from driftscope.trace.manifest import MANIFEST, Manifest, read_manifest
from driftscope.trace.records import SCHEMA_VERSION, Row
from driftscope.trace.schema import Block, record_of, schema_of, to_batch
from driftscope.trace.segments import (
    VERSION_KEY,
    StreamFile,
    digest_of,
    next_number,
    seal,
    segment_path,
)
from driftscope.trace.status import read_statuses, remove_faults, status_path

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
        self._manifest, self._manifest_ns = b"", 0
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
        with contextlib.suppress(OSError):  # the rows are written without it
            self._keep_manifest()
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

    def _keep_manifest(self) -> None:
        """Write the manifest again into a directory that was removed and made again."""
        path = self._run / MANIFEST
        try:
            changed_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            if self._manifest and self._run.is_dir():
                create_whole(path, self._manifest)
            return
        if changed_ns != self._manifest_ns:
            self._manifest = read_bytes(path, limit=MAX_JSON_BYTES, follow=False)
            self._manifest_ns = changed_ns

    def _write(self, record: str, batch: pa.RecordBatch, *, again: bool = True) -> None:
        try:
            self._segment(record).append(batch)
        except OSError as error:
            # A torn write ends the stream for readers: later rows go to a new stream.
            if torn := self._open.pop(record, None):
                torn.abandon()
            # So do these, if the directory was removed and made again.
            if again and torn and isinstance(error, FileNotFoundError) and self._run.is_dir():
                self._number.pop(record, None)
                self._write(record, batch, again=False)
                return
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


TRIAL_BYTES = 1 << 16
"""Size of the file that tests whether a run could be written: more than a start writes."""
MANIFEST_S = 2.0
"""Longest time, in seconds, that writing a manifest may take once its file exists, on a file system
without hard links."""


def check_unused(run: Path, run_id: str | None = None) -> None:
    """Raise TraceError if `run` holds a run, other than `run_id` while it is in progress.

    Engines that one process starts one after the other have the same id.
    """
    if not (run / MANIFEST).exists():
        return
    is_closed = any(status.closed for status in read_statuses(run))
    if is_closed or run_id is None or _run_id(run) != run_id:
        raise TraceError(
            f"{run}: already holds a run; give DRIFTSCOPE_TRACE a new directory "
            "(a {time} in it is replaced by the start time), or start the parts of one deployment "
            "with one DRIFTSCOPE_DEPLOYMENT"
        )


def has_begun(run: Path, run_id: str) -> bool:
    """Return whether `run` holds the run `run_id`, still in progress."""
    try:
        check_unused(run, run_id)
    except TraceError:
        return False
    return (run / MANIFEST).exists()


def check_writable(run: Path) -> None:
    """Raise TraceError if a new run cannot be written to `run`. Nothing is left behind: the test
    file is made in the nearest folder that exists."""
    check_unused(run)
    folder = next((path for path in (run, *run.parents) if path.exists()), run)
    try:
        if folder == run:
            _check_owner(run)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b" " * TRIAL_BYTES)
            file.flush()
    except OSError as error:
        raise unwritable(run, error) from error


def rewrite_manifest(run: Path, manifest: Manifest) -> None:
    """Replace the manifest of `run` as a whole, by rename; raises OSError."""
    write_file(run / MANIFEST, manifest.to_json().encode(), mode=PRIVATE_FILE)


def note_lost(run: Path) -> None:
    """Write to the manifest of `run` how many rows the processes that have ended lost, by cause.

    If several processes end at once, the last counts all of them. A run that lost nothing keeps its
    manifest unchanged. Raises OSError, DamagedTraceError and ValueError, with the manifest
    unchanged.
    """
    with locked(run):
        lost: Counter[str] = Counter()
        for status in read_statuses(run):
            if status.closed:
                lost.update(status.dropped)
        content = read_json(run / MANIFEST)
        counts = {cause: min(rows, MAX_ROWS_COUNTED) for cause, rows in lost.items()}
        if content.get("lost", {}) != counts:
            text = dumps({**content, "lost": counts}, indent=1, sort_keys=True)
            write_file(run / MANIFEST, f"{text}\n".encode(), mode=PRIVATE_FILE)


def _run_id(run: Path) -> str:
    """Return the id in a manifest that another process may be writing at the moment."""
    deadline = time.monotonic() + MANIFEST_S
    while True:
        try:
            return read_manifest(run).run_id
        except DamagedTraceError:
            if time.monotonic() > deadline:
                return ""
            time.sleep(MANIFEST_S / 100)


def create_run(run: Path, manifest: Manifest, *, join: bool = False) -> None:
    """Create `run` and write its manifest; raises TraceError if it already holds a run.

    `join`: a run with the same id is this run, begun by another of its processes.
    """
    try:
        make_private_directory(run)
        _check_owner(run)
        remove_leftovers(run)
        create_whole(run / MANIFEST, manifest.to_json().encode())
        # Remove what an earlier start left that ended before it began a run; ignore failures.
        remove_faults(run)
        with contextlib.suppress(OSError, TraceError):
            for status in read_statuses(run):
                if status.closed:
                    status_path(run, status.source).unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, FileExistsError) and (run / MANIFEST).exists():
            check_unused(run, manifest.run_id if join else None)
            return
        raise unwritable(run, error) from error


def unwritable(run: Path, error: OSError) -> TraceError:
    """Return the error to raise for a directory in which no run can be written."""
    return TraceError(
        f"{run}: cannot write a trace there ({error.strerror or error}); "
        "point DRIFTSCOPE_TRACE at a writable directory"
    )


def _check_owner(run: Path) -> None:
    """Raise TraceError for a directory of another user, who could replace what is written there.

    The superuser may write to any directory.
    """
    me, owner = os.geteuid(), run.stat().st_uid
    if me not in (0, owner):
        raise TraceError(
            f"{run}: belongs to another user (uid {owner}, this process has {me}); "
            "point DRIFTSCOPE_TRACE at a directory of its own"
        )


ROOM_BYTES = 8192
"""Unit of the file's size in bytes: the file is padded with blanks to a multiple of it. If the disk
has no room for a new file, the old one is overwritten, which takes no room."""


def begin_status(path: Path, text: str) -> None:
    """Create a status file; raises FileExistsError if another process has it, and OSError."""
    create_whole(path, _padded(text))


def write_status(path: Path, text: str) -> None:
    """Replace a status file as a whole, or overwrite it in place if that fails; raises OSError if
    neither is possible."""
    content = _padded(text)
    try:
        write_file(path, content, mode=PRIVATE_FILE, durable=False)
    except OSError as error:
        try:
            overwrite(path, content)
        except FileNotFoundError:  # it was never written: the first error says why
            raise error from None


def overwrite(path: Path, content: bytes) -> None:
    """Overwrite a file in place; a reader who sees an incomplete file reads it again.

    If the file is too short, it first grows by blanks: if the disk has no room even for these, or
    the process is killed meanwhile, the file keeps its content.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        write_all(descriptor, [b" " * (len(content) - size)])
        os.lseek(descriptor, 0, os.SEEK_SET)
        write_all(descriptor, [content.ljust(size)])
    finally:
        os.close(descriptor)


def _padded(text: str) -> bytes:
    content = text.encode()
    return content + b" " * (-len(content) % ROOM_BYTES)
