"""Writes a run directory from inside a serving process.

The serving thread calls `put`, which appends to a bounded queue and returns. One background thread
per process, its `WriterThread`, encodes, writes, flushes and seals. What cannot be kept is dropped
and counted; nothing here ever raises into the serving thread.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from driftscope.boundary.file_output import (
    make_private_directory,
    remove_leftovers,
)
from driftscope.errors import TraceError
from driftscope.trace.format.privacy import Pseudonyms
from driftscope.trace.format.records import Row
from driftscope.trace.format.row_block import Block
from driftscope.trace.format.status import STATUS_S, Status
from driftscope.trace.write.record_files import Batch, DiskLimitError, RecordFiles, batches_of
from driftscope.trace.write.row_queue import BoundedQueue
from driftscope.trace.write.run_directory import note_lost
from driftscope.trace.write.status_file import StatusFile
from driftscope.trace.write.writer_thread import writer_thread_of

Deferred = Callable[[], Iterable[Row]]
"""Function that builds rows on the writer's thread: cheap to pass on, costly to run."""


Encode = Callable[[list[Any]], Iterable[Row | Block]]
"""Function that builds rows of all waiting items: many items at once cost little more than one."""
Work = tuple[Encode, Any]
"""An `Encode` function and one item for it; a plain tuple, because every step creates one on the
serving thread."""
Item = Row | Deferred | Work

FLUSH_S = 0.95
"""Longest time that a row waits for the writer, in seconds. Readers are promised one second; each
flush costs about a millisecond of the serving process's interpreter, whatever it writes."""
SAMPLE_S = 10.0
"""Shortest time between two samples of the process's resources, in seconds."""
QUEUE_ITEMS = 4096
"""Number of items (a step's chains are one) that may wait before new ones are dropped."""
ERROR_CHARS = 2000
"""Number of characters of the first error that the status file keeps."""
MAX_BYTES = 2 << 30
"""Default limit on one process's record files on disk, in bytes."""

_LOG = logging.getLogger("driftscope")

GAUGES = frozenset({"rate", "overhead", "recording", "control"})
"""Fields of the status file that `TraceWriter.set_gauges` sets."""


_AT_ONCE = frozenset({"recording", "control"})
"""Gauges whose change is written to the status file at once."""


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

    def __init__(
        self,
        run: Path,
        *,
        source: str,
        max_bytes: int = MAX_BYTES,
        flush_s: float = FLUSH_S,
        queue_items: int = QUEUE_ITEMS,
        clock: Callable[[], float] = time.time,
        sampler: Deferred | None = None,
        cpus: frozenset[int] | None = None,
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        """`source`: role and pid, such as "worker0-4711"; if the run already has a status of that
        name, a number is added. `sampler` builds additional rows, at most every SAMPLE_S and only
        while other rows arrive. `cpus`: cores of the writer's thread; None: those of the thread
        that opens the writer. `pseudonyms`: replaces identifiers in files, in what `subscribe`
        passes on and in errors; None: identifiers are kept."""
        self._run, self._clock = run, clock
        self._queue: BoundedQueue[Item] = BoundedQueue(queue_items)
        self.put: Callable[[Item], bool] = self._queue.put
        """Queue a row, a function that builds rows, or a `Work`; never blocks, never raises. This
        is the queue's own method, because every step calls it on the serving thread."""
        self._pseudonyms = pseudonyms
        self._dropped: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._first_error: str | None = None
        self._writer_s = 0.0
        self.probe_s = 0.0
        """The probe's own time on serving threads, in seconds."""
        self.spent_s = 0.0
        """CPU time of the writer's thread for all writers of the process, in seconds."""
        self._gauges: dict[str, Any] = {}
        self._look: Callable[[], None] | None = None
        self._hear: Callable[[Sequence[Batch]], None] | None = None
        self._ended: Callable[[], None] = lambda: None
        self._open = True
        self._last_status, self._status_at, self._urgent = "", 0.0, False
        self._begin(source, max_bytes)
        self._sampler, self._sampled_at = sampler, -SAMPLE_S
        self._over = threading.Event()
        self._writer_thread = writer_thread_of(flush_s, cpus)
        self._thread = self._writer_thread.add(self._work)
        atexit.register(self.close)

    @property
    def source(self) -> str:
        """Name of the process, as in its status."""
        return self._source

    def flush_soon(self) -> None:
        """Write the queued items now, because the caller has little room left."""
        self._writer_thread.wake()

    def count_error(self, hook: str, error: BaseException) -> None:
        """Count an exception that a hook swallowed."""
        if self._first_error is None:
            self._first_error = f"{hook}: {self._words(error)}"
        self._errors[hook] += 1
        self._urgent = True

    def _words(self, error: BaseException) -> str:
        """Return an error's words; without identifiers only its class: words may quote an id."""
        name = type(error).__name__
        return name if self._pseudonyms else f"{name}: {error}"[:ERROR_CHARS]

    def count_dropped(self, cause: str, rows: int) -> None:
        """Count lost rows; the first loss of each cause is logged."""
        if cause not in self._dropped:
            _LOG.warning("%s: rows are being lost (%s); serving goes on", self._run, cause)
        self._dropped[cause] += rows
        self._urgent = True

    def set_gauges(self, **values: Any) -> None:
        """Set `rate`, `overhead`, `recording` or `control` for the status file's next rewrite."""
        if unknown := values.keys() - GAUGES:
            raise TypeError(f"no gauge of the status file: {', '.join(sorted(unknown))}")
        self._urgent |= any(values.get(n) != self._gauges.get(n) for n in _AT_ONCE & values.keys())
        self._gauges = {**self._gauges, **values}

    def status(self) -> Status:
        """Return the current status, as the status file has it or will have it next."""
        return self._status(closed=not self._open)

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
        self._writer_thread.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._over.wait(timeout_s)
        atexit.unregister(self.close)

    def _begin(self, source: str, max_bytes: int) -> None:
        """Create the run directory and a status file that no other process has.

        Containers number processes from 1 again, so that two of one run may have the same role and
        pid. The second would overwrite the first one's record of losses, and the digests of its
        files.
        """
        try:
            make_private_directory(self._run)
            remove_leftovers(self._run)
            for name in itertools.chain([source], (f"{source}.{n}" for n in itertools.count(2))):
                self._source = name
                self._files = RecordFiles(self._run, name, max_bytes)
                self._status_file = StatusFile(self._run, name)
                with contextlib.suppress(FileExistsError):
                    self._write_status(closed=False, write=self._status_file.begin)
                    return
        except OSError as error:
            raise TraceError(
                f"{self._run}: cannot write a trace there ({error.strerror or error}); "
                "point DRIFTSCOPE_TRACE at a writable directory"
            ) from error

    def _work(self) -> bool:
        """Run one turn; return True if it was the last."""
        begun, closing = time.thread_time(), not self._open
        items = self._queue.take_all()
        self._store([*items, *self._due(bool(items))])
        if not closing:
            self._watch()
            if self._urgent or time.monotonic() - self._status_at >= STATUS_S:
                self._guarded(lambda: self._write_status(closed=False))
            self.spent_s = time.thread_time()
            self._writer_s += self.spent_s - begun
            return False
        self._guarded(self._files.seal)
        self._guarded(lambda: self._write_status(closed=True))
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
            _LOG.warning("%s: its manifest does not say what was lost (%s)", self._run, error)

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
        rows: list[Row | Block] = []
        for count, make in _together(items):
            try:
                rows.extend(make())
            except Exception as error:  # the border: a bad capture costs its rows, not the run
                self.count_dropped("encode_error", count)
                self.count_error("encode", error)
        batches = self._encoded(rows)
        if batches:
            self._write(batches)
        self._tell(batches)

    def _encoded(self, rows: list[Row | Block]) -> list[Batch]:
        batches: list[Batch] = []
        try:
            for record, batch in batches_of(rows):
                named = batch if self._pseudonyms is None else self._pseudonyms.batch(batch)
                batches.append((record, named))  # what was built before an error is kept
        except Exception as error:  # a value that does not fit its column
            number = sum(row.rows if isinstance(row, Block) else 1 for row in rows)
            self.count_dropped("encode_error", number - sum(b.num_rows for _, b in batches))
            self.count_error("encode", error)
        return batches

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

    def _tell(self, batches: Sequence[Batch]) -> None:
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

    def _write_status(self, *, closed: bool, write: Callable[[str], None] | None = None) -> None:
        """Rewrite the status file if something changed, or have `write` create it."""
        self._status_at, self._urgent = time.monotonic(), False
        content = self._status(closed=closed).to_json()
        if content == self._last_status:
            return
        (write or self._status_file.write)(content)
        self._last_status = content

    def _status(self, *, closed: bool) -> Status:
        dropped = Counter(self._dropped)
        if self._queue.dropped:
            dropped["queue_full"] = self._queue.dropped
        return Status(
            source=self._source,
            closed=closed,
            flushed_s=self._files.last_write_s or self._clock(),
            rows=dict(self._files.rows),
            dropped=dict(dropped),
            errors=dict(self._errors),
            first_error=self._first_error,
            probe_s=round(self.probe_s, 6),
            writer_s=round(self._writer_s, 6),
            digests=dict(self._files.digests),
            **self._gauges,
        )


def _together(items: list[Item]) -> Iterator[tuple[int, Callable[[], Iterable[Row | Block]]]]:
    """Yield counts of items and functions that build their rows: in order, except that work for one
    function is combined."""
    work: dict[Any, list[Any]] = {}
    latest, waiting = None, None
    for item in items:
        if isinstance(item, tuple):
            if waiting is None or item[0] is not latest:
                latest = item[0]
                waiting = work.setdefault(latest, [])
            waiting.append(item[1])
        elif callable(item):
            yield 1, item
        else:
            yield 1, functools.partial(_one, item)
    for encode, several in work.items():
        yield len(several), functools.partial(encode, several)


def _one(row: Row) -> Iterable[Row]:
    return (row,)
