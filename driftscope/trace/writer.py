"""Writes the rows of one process, on one thread, without ever blocking or failing the serving path.

Serving threads put items into a bounded queue, which drops and counts. The writer's thread builds
rows of them, batches of the rows, and appends these to the record files; what cannot be built is
counted. While it works, the serving thread waits for the interpreter: all writers of a process
therefore take their turns on one thread in direct succession, seldom, and while the code and data
that they share are in the caches.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from driftscope.boundary.files import make_private_directory, remove_leftovers
from driftscope.trace.records import Row
from driftscope.trace.schema import Block, Pseudonyms
from driftscope.trace.status import MAX_UPDATES, STATUS_S, Status, WeightUpdate, status_path
from driftscope.trace.writer_files import (
    Batch,
    DiskLimitError,
    RecordFiles,
    batches_of,
    begin_status,
    note_lost,
    unwritable,
    write_status,
)

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """A queue with many producers and one consumer. `append` is atomic: a put takes no lock."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._capacity, self._open = capacity, True
        self.dropped = 0
        """Number of items refused because the queue was full."""

    def put(self, item: T) -> bool:
        """Append `item`; False if the queue is closed, or if it is full: then it is counted."""
        if len(self._items) >= self._capacity:
            self.dropped += self._open
            return False
        self._items.append(item)
        return True

    def close(self) -> None:
        """Refuse all further items."""
        self._open, self._capacity = False, 0

    def take_all(self) -> list[T]:
        """Remove and return everything that is queued."""
        take = self._items.popleft
        return [take() for _ in range(len(self._items))]


Encode = Callable[[list[Any]], Iterable[Row | Block]]
"""Function that builds rows of all waiting items: many items at once cost little more than one."""
Work = tuple[Encode, Any]
"""An `Encode` function and one item for it; a plain tuple, because every step creates one on the
serving thread."""
Item = Row | Work


def _grouped(items: list[Item]) -> Iterable[tuple[Encode, list[Any]]]:
    """Return functions that build rows, each with all items that wait for it."""
    work: dict[Encode, list[Any]] = {}
    latest, waiting = None, list[Any]()
    for item in items:
        encode, content = item if isinstance(item, tuple) else (_as_they_are, item)
        if encode is not latest:
            latest, waiting = encode, work.setdefault(encode, [])
        waiting.append(content)
    return work.items()


def _as_they_are(rows: list[Row]) -> list[Row]:
    return rows


FLUSH_S = 0.95
"""Longest time that a row waits for the writer, in seconds. Readers are promised one second; each
flush costs about a millisecond of the serving process's interpreter, whatever it writes."""
QUEUE_ITEMS = 4096
"""Number of items (a step's chains are one) that may wait before new ones are dropped."""
MAX_BYTES = 2 << 30
"""Default limit on one process's record files on disk, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Everything about a trace writer except its run directory and its process."""

    max_bytes: int = MAX_BYTES
    """Limit on the process's record files on disk, in bytes."""
    flush_s: float = FLUSH_S
    """Longest time that a row waits for the writer, in seconds."""
    queue_items: int = QUEUE_ITEMS
    """Number of items that may wait before new ones are dropped."""
    clock: Callable[[], float] = time.time
    """Returns the Unix time in seconds."""
    sampler: Callable[[], Iterable[Row]] | None = None
    """Builds additional rows, at most every SAMPLE_S and only while other rows arrive."""
    cpus: frozenset[int] | None = None
    """Cores of the writer's thread; None: those of the thread that opens the writer."""
    pseudonyms: Pseudonyms | None = None
    """Replaces identifiers in files, in what `subscribe` passes on and in errors; None: identifiers
    are kept."""


DEFAULTS = WriterOptions()


ERROR_CHARS = 2000
"""Number of characters of the first error that the status file keeps."""
GAUGES = frozenset({"rate", "overhead", "recording", "control", "reason", "step_s"})
"""Fields of the status file that `StatusRecord.set_gauges` sets."""

SAME_UPDATE_S = 1.0
"""Longest time between two loads of one update, in seconds: trainers send weights in parts."""
_AT_ONCE = frozenset({"recording", "control", "reason"})
"""Gauges whose change is written to the status file at once."""
_LOG = logging.getLogger("driftscope")


class StatusRecord:
    """Report of one process about itself.

    ======================  ===============================================================
    `count_error(hook, e)`  count a swallowed exception
    `count_dropped(c, n)`   count n lost rows by their cause
    `set_gauges(rate=...)`  set the probe's current state
    `note_weights(m, v)`    note that the weights of a model were updated
    `status(...)`           return everything
    `rewrite(status)`       write it to the status file if it changed
    ======================  ===============================================================
    """

    def __init__(
        self,
        run: Path,
        source: str,
        files: RecordFiles,
        queue: BoundedQueue[Any],
        options: WriterOptions,
    ) -> None:
        self._run, self.source, self._files, self._queue = run, source, files, queue
        self._keeps_ids, self._clock = options.pseudonyms is None, options.clock
        self._dropped: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._first_error: str | None = None
        self._gauges: dict[str, Any] = {}
        self._weights: tuple[WeightUpdate, ...] = ()
        self.urgent = False
        """Whether something changed that is to be written at once."""
        self.written_at = 0.0
        """Monotonic time of the last rewrite, in seconds."""
        self._last = ""

    def count_error(self, hook: str, error: BaseException) -> None:
        """Count an exception that a hook swallowed."""
        self._errors[hook] += 1
        self.urgent = True
        if self._first_error is None:
            self._first_error = f"{hook}: {self._description(error)}"

    def count_dropped(self, cause: str, rows: int) -> None:
        """Count lost rows; the first loss of each cause is logged."""
        if cause not in self._dropped:
            _LOG.warning("%s: rows are being lost (%s); serving goes on", self._run, cause)
        self._dropped[cause] += rows
        self.urgent = True

    def set_gauges(self, **values: Any) -> None:
        """Set values of GAUGES for the status file's next rewrite."""
        if unknown := values.keys() - GAUGES:
            raise TypeError(f"no gauge of the status file: {', '.join(sorted(unknown))}")
        self.urgent |= any(values.get(n) != self._gauges.get(n) for n in _AT_ONCE & values.keys())
        self._gauges = {**self._gauges, **values}

    def note_weights(self, model: str, version: str | None = None) -> None:
        """Note that the weights of `model` were updated, to `version` if the engine names it. Loads
        within SAME_UPDATE_S of each other are one update."""
        update = WeightUpdate(time_s=self._clock(), model=model, version=version)
        before = self._weights
        last = before[-1] if before else None
        if last is not None and last.model == model and update.time_s - last.time_s < SAME_UPDATE_S:
            update, before = replace(update, version=update.version or last.version), before[:-1]
        self._weights = (*before, update)[:MAX_UPDATES]
        self.urgent = True

    def status(self, *, closed: bool, probe_s: float, writer_s: float) -> Status:
        """Return the current status; the times are those of the probe and of the writer, in
        seconds."""
        dropped = Counter(self._dropped)
        if self._queue.dropped:
            dropped["queue_full"] = self._queue.dropped
        return Status(
            source=self.source,
            closed=closed,
            flushed_s=self._files.last_write_s or self._clock(),
            rows=dict(self._files.rows),
            dropped=dict(dropped),
            errors=dict(self._errors),
            first_error=self._first_error,
            probe_s=round(probe_s, 6),
            writer_s=round(writer_s, 6),
            digests=dict(self._files.digests),
            weights=self._weights,
            **self._gauges,
        )

    def begin(self, status: Status) -> None:
        """Create the status file; raises FileExistsError if another process has it, and OSError."""
        self._write(status, begin_status)

    def rewrite(self, status: Status) -> None:
        """Rewrite the status file if something changed; raises OSError."""
        self._write(status, write_status)

    def _write(self, status: Status, write: Callable[[Path, str], None]) -> None:
        self.written_at, self.urgent = time.monotonic(), False
        content = status.to_json()
        if content != self._last:
            write(status_path(self._run, self.source), content)
            self._last = content

    def _description(self, error: BaseException) -> str:
        """Return an error's words; without identifiers only its class: words may quote an id."""
        name = type(error).__name__
        with contextlib.suppress(Exception):  # an engine's own error may fail to say what it is
            return f"{name}: {error}"[:ERROR_CHARS] if self._keeps_ids else name
        return name


NAME = "driftscope-writer"
Turn = Callable[[], bool]
"""One turn of a writer; returns True if it was the last."""


class WriterThread:
    """Calls each work function once per period, and when woken, until it reports its last turn."""

    def __init__(self, period_s: float, cpus: frozenset[int] | None) -> None:
        self._period_s, self._cpus = period_s, cpus
        self._works: list[Turn] = []
        self._hurry, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        """Process that has the thread: a forked one has none, and must not write for this one."""

    @property
    def is_another(self) -> bool:
        """Whether the thread runs, and is not the one that asks."""
        thread = self._thread
        return thread is not None and thread.is_alive() and thread is not threading.current_thread()

    def add(self, work: Turn) -> None:
        """Call `work` from now on."""
        with self._lock:
            self._works.append(work)
            if self._thread is None:
                self._begin()
        self._hurry.set()

    def wake(self) -> bool:
        """Run the next turns now; return False if the thread had died, so that a new one was begun.

        It takes a lock only then, because serving threads call it, and never raises.
        """
        thread = self._thread
        died = thread is not None and not thread.is_alive() and os.getpid() == self._pid
        if died:
            with self._lock, contextlib.suppress(RuntimeError):  # no thread can be started now
                if self._thread is thread:
                    self._begin()
        self._hurry.set()
        return not died

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        if self._cpus:
            with contextlib.suppress(OSError):  # cores may have been removed since
                os.sched_setaffinity(0, self._cpus)  # for this thread
        while self._turns():
            self._hurry.wait(self._period_s)
            self._hurry.clear()

    def _turns(self) -> bool:
        """Run one turn of each work function; return False if nothing is left to do."""
        done = [work for work in tuple(self._works) if work()]
        with self._lock:
            self._works = [work for work in self._works if work not in done]
            if not self._works:
                self._thread = None
            return bool(self._works)


_threads: dict[tuple[float, frozenset[int] | None], WriterThread] = {}
os.register_at_fork(after_in_child=_threads.clear)  # a forked process has no such threads


SAMPLE_S = 10.0
"""Shortest time between two samples of the process's resources, in seconds."""


class TraceWriter:
    """The record files of one process in a run directory.

    ======================  ===============================================================
    `put(item)`             queue an item, from any thread; False if it was dropped
    `flush_soon()`          do not wait any longer for more items
    `count_error(hook, e)`  count a swallowed exception of the serving path
    `probe_s`               time of hooks on serving threads, to which hooks add
    `set_gauges(rate=...)`  set the probe's current state, for the status file
    `note_weights(m, v)`    note an update of a model's weights there
    `status()`              return the status of this process
    `watch(look)`           call `look` at each flush, on the writer's thread
    `subscribe(hear, ended)` call `hear` with what is written, on the writer's thread
    `end()`                 refuse further items, and begin to drain, seal and mark closed
    `close()`               `end`, and wait for it; idempotent, also at interpreter exit
    ======================  ===============================================================

    Raises TraceError only from the constructor, if the directory cannot be created or written.
    """

    def __init__(self, run: Path, *, source: str, options: WriterOptions = DEFAULTS) -> None:
        """`source`: role and pid, such as "worker0-4711"; if the run already has a status of that
        name, a number is added."""
        self._run = run
        self._queue: BoundedQueue[Item] = BoundedQueue(options.queue_items)
        self.put: Callable[[Item], bool] = self._queue.put
        """Queue a row or a `Work`; never blocks, never raises. This
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
        self.note_weights = self._record.note_weights
        self._pseudonyms = options.pseudonyms
        self._sampler, self._sampled_at = options.sampler, -SAMPLE_S
        self._over = threading.Event()
        self._writer_thread = _threads.setdefault(
            (options.flush_s, options.cpus), WriterThread(options.flush_s, options.cpus)
        )
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

    def end(self) -> None:
        """Refuse further items; the writer's thread seals everything and marks the source
        closed."""
        self._queue.close()
        self._open = False
        self.flush_soon()

    def close(self, timeout_s: float = 30.0) -> None:
        """Write and seal everything in the queue, and mark the source closed."""
        self.end()
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
            for name in itertools.chain([source], (f"{source}.{n}" for n in itertools.count(2))):
                files = RecordFiles(self._run, name, options.max_bytes)
                record = StatusRecord(self._run, name, files, self._queue, options)
                with contextlib.suppress(FileExistsError):
                    record.begin(self._status(record, closed=False))
                    break
        except OSError as error:
            raise unwritable(self._run, error) from error
        return files, record

    def _work(self) -> bool:
        """Run one turn; return True if it was the last."""
        begun, closing = time.thread_time(), not self._open
        items = self._queue.take_all()
        batches = self._batches([*items, *self._due(bool(items))])
        if batches:
            self._write(batches)
        if self._hear is not None:
            hear = self._hear
            self._guarded("telemetry", lambda: hear(batches))
        if not closing:
            if self._look is not None:
                self._guarded("control", self._look)
            if self._record.urgent or time.monotonic() - self._record.written_at >= STATUS_S:
                state = self._status(self._record, closed=False)  # though `end` was called just now
                self._guarded("write", lambda: self._record.rewrite(state))
            self.spent_s = time.thread_time()
            self._writer_s += self.spent_s - begun
            return False
        self._guarded("write", self._files.seal)
        self._guarded("write", lambda: self._record.rewrite(self.status()))
        self._note_lost()
        self._guarded("write", self._ended)
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
        now, sampler = time.monotonic(), self._sampler
        if sampler is None or not serving or now - self._sampled_at < SAMPLE_S:
            return []
        self._sampled_at = now
        return [(lambda _: sampler(), None)]

    def _batches(self, items: list[Item]) -> list[Batch]:
        """Return the batches of `items`; those that cannot be encoded are dropped and counted."""
        rows: list[Row | Block] = []
        for encode, several in _grouped(items):
            try:
                rows.extend(encode(several))
            except Exception as error:  # the border: a bad capture costs its rows, not the run
                self.count_dropped("encode_error", len(several))
                self.count_error("encode", error)
        batches: list[Batch] = []
        try:
            for record, batch in batches_of(rows):
                named = batch if self._pseudonyms is None else self._pseudonyms.batch(batch)
                batches.append((record, named))  # what was built before an error is kept
        except Exception as error:  # a value that does not fit its column
            number = sum(row.rows if isinstance(row, Block) else 1 for row in rows)
            encoded = sum(batch.num_rows for _, batch in batches)
            self.count_dropped("encode_error", number - encoded)
            self.count_error("encode", error)
        return batches

    def _write(self, batches: list[Batch]) -> None:
        """Write `batches`; the rows of a failed write are counted as lost, except those of records
        already written."""
        unwritten = sum(batch.num_rows for _, batch in batches) + self._files.rows.total()
        try:
            self._files.write(batches)
        except Exception as error:  # the border: rows are lost and counted, not the run
            full, disk = isinstance(error, DiskLimitError), isinstance(error, OSError)
            cause = "disk_limit" if full else "disk_error" if disk else "encode_error"
            if lost := unwritten - self._files.rows.total():
                self.count_dropped(cause, lost)
            if not full:
                self.count_error("write" if disk else "encode", error)

    def _guarded(self, hook: str, action: Callable[[], None]) -> None:
        """Run `action`; an exception is counted under `hook`, and costs no row."""
        try:
            action()
        except Exception as error:  # the same border
            self.count_error(hook, error)

    def _status(self, record: StatusRecord, *, closed: bool) -> Status:
        return record.status(closed=closed, probe_s=self.probe_s, writer_s=self._writer_s)
