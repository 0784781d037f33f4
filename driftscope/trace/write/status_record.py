"""The counts and gauges of one process, and its status file, which is rewritten as they change."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driftscope.trace.format.status import Status
from driftscope.trace.write.record_files import RecordFiles
from driftscope.trace.write.row_queue import BoundedQueue
from driftscope.trace.write.status_file import StatusFile
from driftscope.trace.write.writer_options import WriterOptions

ERROR_CHARS = 2000
"""Number of characters of the first error that the status file keeps."""
GAUGES = frozenset({"rate", "overhead", "recording", "control", "reason", "step_s"})
"""Fields of the status file that `StatusRecord.set_gauges` sets."""

_AT_ONCE = frozenset({"recording", "control", "reason"})
"""Gauges whose change is written to the status file at once."""
_LOG = logging.getLogger("driftscope")


class StatusRecord:
    """Report of one process about itself.

    ======================  ===============================================================
    `count_error(hook, e)`  count a swallowed exception
    `count_dropped(c, n)`   count n lost rows by their cause
    `set_gauges(rate=...)`  set the probe's current state
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
        self._file = StatusFile(run, source)
        self._dropped: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._first_error: str | None = None
        self._gauges: dict[str, Any] = {}
        self.urgent = False
        """Whether something changed that is to be written at once."""
        self.written_at = 0.0
        """Monotonic time of the last rewrite, in seconds."""
        self._last = ""

    def count_error(self, hook: str, error: BaseException) -> None:
        """Count an exception that a hook swallowed."""
        if self._first_error is None:
            self._first_error = f"{hook}: {self._description(error)}"
        self._errors[hook] += 1
        self.urgent = True

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
            **self._gauges,
        )

    def begin(self, status: Status) -> None:
        """Create the status file; raises FileExistsError if another process has it, and OSError."""
        self._write(status, self._file.begin)

    def rewrite(self, status: Status) -> None:
        """Rewrite the status file if something changed; raises OSError."""
        self._write(status, self._file.write)

    def _write(self, status: Status, write: Callable[[str], None]) -> None:
        self.written_at, self.urgent = time.monotonic(), False
        content = status.to_json()
        if content != self._last:
            write(content)
            self._last = content

    def _description(self, error: BaseException) -> str:
        """Return an error's words; without identifiers only its class: words may quote an id."""
        name = type(error).__name__
        return f"{name}: {error}"[:ERROR_CHARS] if self._keeps_ids else name
