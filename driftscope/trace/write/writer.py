"""Writes a run directory from inside a serving process.

The serving thread calls `put`, which appends to a bounded queue and returns. One background thread
per process, its `WriterThread`, encodes, writes, flushes and seals. What cannot be kept is dropped
and counted; nothing here ever raises into the serving thread.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from driftscope.boundary.files import make_private_directory, remove_leftovers
from driftscope.errors import TraceError
from driftscope.trace.format.status import STATUS_S, Status
from driftscope.trace.write.batch_encoder import BatchEncoder, Item
from driftscope.trace.write.record_files import Batch, DiskLimitError, RecordFiles
from driftscope.trace.write.row_queue import BoundedQueue
from driftscope.trace.write.run_directory import note_lost
from driftscope.trace.write.status_record import StatusRecord
from driftscope.trace.write.writer_options import DEFAULTS, WriterOptions
from driftscope.trace.write.writer_thread import writer_thread_of

SAMPLE_S = 10.0
"""Shortest time between two samples of the process's resources, in seconds."""

_LOG = logging.getLogger("driftscope")


class TraceWriter:
    """The record files of one process in a run directory.

    ======================  ===============================================================
    `put(item)`             queue an item, from any thread; False if it was dropped
    `flush_soon()`          do not wait any longer for more items
    `count_error(hook, e)`  count a swallowed exception of the serving path
    `probe_s`               time of hooks on serving threads, to which hooks add
    `set_gauges(rate=...)`  set the probe's current state, for the status file
    `status()`              return the status of this process
    `watch(look)`           call `look` at each flush, on the writer's thread
    `subscribe(hear, ended)` call `hear` with what is written, on the writer's thread
    `close()`               drain, seal, mark closed; idempotent, also at interpreter exit
    ======================  ===============================================================

    Raises TraceError only from the constructor, if the directory cannot be created or written.
    """

    def __init__(self, run: Path, *, source: str, options: WriterOptions = DEFAULTS) -> None:
        """`source`: role and pid, such as "worker0-4711"; if the run already has a status of that
        name, a number is added."""
        self._run = run
        self._queue: BoundedQueue[Item] = BoundedQueue(options.queue_items)
        self.put: Callable[[Item], bool] = self._queue.put
        """Queue a row, a function that builds rows, or a `Work`; never blocks, never raises. This
        is the queue's own method, because every step calls it on the serving thread."""
        self._writer_s = 0.0
        self.probe_s = 0.0
        """The probe's own time on serving threads, in seconds."""
        self.spent_s = 0.0
        """CPU time of the writer's thread for all writers of the process, in seconds."""
        self._look: Callable[[], None] | None = None
        self._hear: Callable[[Sequence[Batch]], None] | None = None
        self._ended: Callable[[], None] = lambda: None
        self._open = True
        self._files, self._record = self._begun(source, options)
        self.count_error = self._record.count_error
        self.count_dropped = self._record.count_dropped
        self.set_gauges = self._record.set_gauges
        self._encoder = BatchEncoder(self._record, options.pseudonyms)
        self._sampler, self._sampled_at = options.sampler, -SAMPLE_S
        self._over = threading.Event()
        self._writer_thread = writer_thread_of(options.flush_s, options.cpus)
        self._writer_thread.add(self._work)
        atexit.register(self.close)

    @property
    def source(self) -> str:
        """Name of the process, as in its status."""
        return self._record.source

    def flush_soon(self) -> None:
        """Write the queued items now, because the caller has little room left."""
        if not self._writer_thread.wake():
            self.count_error("writer", RuntimeError("the writer's thread died and was replaced"))

    def status(self) -> Status:
        """Return the current status, as the status file has it or will have it next."""
        return self._status(self._record, closed=not self._open)

    def watch(self, look: Callable[[], None]) -> None:
        """Call `look` on the writer's thread at each flush; its exceptions are counted."""
        self._look = look

    def subscribe(
        self, hear: Callable[[Sequence[Batch]], None], ended: Callable[[], None] = lambda: None
    ) -> None:
        """Call `hear` on the writer's thread with the batches of each flush, even if there are none
        or the disk has no room for them, and `ended` after the last flush; exceptions that they
        raise are counted."""
        self._hear, self._ended = hear, ended

    def close(self, timeout_s: float = 30.0) -> None:
        """Write and seal everything in the queue, and mark the source closed."""
        self._queue.close()
        self._open = False
        self.flush_soon()
        if self._writer_thread.is_another:
            self._over.wait(timeout_s)
        atexit.unregister(self.close)

    def _begun(self, source: str, options: WriterOptions) -> tuple[RecordFiles, StatusRecord]:
        """Create the run directory and a status file that no other process has.

        Containers number processes from 1 again, so that two of one run may have the same role and
        pid. The second would overwrite the first one's record of losses, and the digests of its
        files.
        """
        try:
            make_private_directory(self._run)
            remove_leftovers(self._run)
            for name in _numbered(source):
                files = RecordFiles(self._run, name, options.max_bytes)
                record = StatusRecord(self._run, name, files, self._queue, options)
                with contextlib.suppress(FileExistsError):
                    record.begin(self._status(record, closed=False))
                    break
        except OSError as error:
            raise TraceError(
                f"{self._run}: cannot write a trace there ({error.strerror or error}); "
                "point DRIFTSCOPE_TRACE at a writable directory"
            ) from error
        return files, record

    def _work(self) -> bool:
        """Run one turn; return True if it was the last."""
        begun, closing = time.thread_time(), not self._open
        items = self._queue.take_all()
        self._store([*items, *self._due(bool(items))])
        if not closing:
            self._watch()
            if self._record.urgent or time.monotonic() - self._record.written_at >= STATUS_S:
                self._guarded(lambda: self._rewrite_status(closed=False))
            self.spent_s = time.thread_time()
            self._writer_s += self.spent_s - begun
            return False
        self._guarded(self._files.seal)
        self._guarded(lambda: self._rewrite_status(closed=True))
        self._note_lost()
        self._guarded(self._ended)
        self._over.set()
        return True

    def _note_lost(self) -> None:
        """Write the losses to the manifest if possible; the status already states them."""
        if not self.status().dropped:
            return
        try:
            note_lost(self._run)
        except FileNotFoundError:  # there is no run: it was removed, or never begun
            pass
        except Exception as error:  # the border: usually the disk that rows were lost to
            _LOG.warning("%s: cannot note in its manifest what was lost (%s)", self._run, error)

    def _due(self, serving: bool) -> list[Item]:
        """Return the sampler if it is due: an idle server records nothing."""
        now = time.monotonic()
        if self._sampler is None or not serving or now - self._sampled_at < SAMPLE_S:
            return []
        self._sampled_at = now
        return [self._sampler]

    def _watch(self) -> None:
        if self._look is None:
            return
        try:
            self._look()
        except Exception as error:  # the same border: an invalid request is not applied
            self.count_error("control", error)

    def _store(self, items: list[Item]) -> None:
        batches = self._encoder.batches(items)
        if batches:
            self._write(batches)
        self._pass_on(batches)

    def _write(self, batches: list[Batch]) -> None:
        unwritten = sum(batch.num_rows for _, batch in batches) + self._files.rows.total()
        try:
            self._files.write(batches)
        except DiskLimitError:
            self.count_dropped("disk_limit", unwritten - self._files.rows.total())
        except OSError as error:  # usually a full disk
            self._count_lost("disk_error", unwritten)
            self.count_error("write", error)
        except Exception as error:  # the border: rows are lost and counted, not the run
            self._count_lost("encode_error", unwritten)
            self.count_error("encode", error)

    def _pass_on(self, batches: Sequence[Batch]) -> None:
        if self._hear is None:
            return
        try:
            self._hear(batches)
        except Exception as error:  # the same border: figures are lost, no row
            self.count_error("telemetry", error)

    def _count_lost(self, cause: str, unwritten: int) -> None:
        """Count the rows of a failed append, except those of records already written."""
        if lost := unwritten - self._files.rows.total():
            self.count_dropped(cause, lost)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # same border
            self.count_error("write", error)

    def _rewrite_status(self, *, closed: bool) -> None:
        self._record.rewrite(self._status(self._record, closed=closed))

    def _status(self, record: StatusRecord, *, closed: bool) -> Status:
        return record.status(closed=closed, probe_s=self.probe_s, writer_s=self._writer_s)


def _numbered(source: str) -> Iterator[str]:
    """Yield `source` itself, then the same with numbers from 2 on."""
    return itertools.chain([source], (f"{source}.{n}" for n in itertools.count(2)))
