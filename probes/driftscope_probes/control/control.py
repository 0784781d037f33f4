"""Applies changes to a running probe, requested over vLLM's RPC or in the control file.

Both ways end in `Control.apply`. A change received over RPC is also written to the control file, so
that the run's other processes apply it; they read the file on their writer's thread.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftscope.trace.format.control_file import (
    CONTROL,
    Change,
    ControlValueError,
    ask,
    read_control,
)
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.steps.request_selection import RequestSelection

if TYPE_CHECKING:
    from driftscope_probes.recording.recorder import Recorder

_CHANGES = {"start": Change(recording=True), "stop": Change(recording=False), "status": Change()}


class Control:
    """Applies changes in one process while it records.

    ====================  =====================================================================
    `watch()`             check the run's control file from now on
    `answer(action, ...)` apply a change received over RPC and return the status
    `apply(change)`       apply a change; may be called from any thread
    ====================  =====================================================================
    """

    def __init__(
        self,
        run: Path,
        writer: TraceWriter,
        selection: RequestSelection,
        recorder: Recorder | None = None,
        *,
        governed: bool = True,
    ) -> None:
        """Without a `recorder`, as in the engine core, only the selection can be changed.

        `governed`: whether a budget may be set.
        """
        self._run, self._writer, self._governed = run, writer, governed
        self._file = run / CONTROL
        self._selection, self._recorder = selection, recorder
        self._seen: tuple[int, ...] | None = None
        self._revision = 0
        self._lock = threading.RLock()
        self._unkept = 0
        """Number of changes not yet written to the control file, which until then is outdated."""
        self._tell()

    def watch(self) -> None:
        """Follow the control file, with one `stat` each time that the writer checks."""
        self._writer.watch(self._look)

    def answer(self, action: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return the status of this process after `action`, or an "error" if it is impossible."""
        try:
            change = Change.checked(values)
            if action != "set":
                if action not in _CHANGES or values:
                    raise ControlValueError(
                        f"{action}: give status, start or stop, or set with what to change"
                    )
                change = _CHANGES[action]
            if change.given():
                with self._lock:
                    self.apply(change)
                    self._unkept += self._writer.put(lambda: self._keep(change))
        except ControlValueError as error:
            return {"error": str(error)}
        status = self._writer.status()
        return {"run": str(self._run), **dataclasses.asdict(status), "control": self._settings()}

    def apply(self, change: Change) -> None:
        """Apply the values that differ; raises ControlValueError for a budget if not `governed`."""
        if change.budget is not None and not self._governed:
            raise ControlValueError("budget: not available with tensor parallelism; give every")
        with self._lock:
            if change.labels is not None:
                self._selection.labels = change.labels
            if self._recorder is not None:
                _apply(change, self._recorder)
            self._tell()

    def _look(self) -> None:
        try:
            file = self._file.stat()
        except FileNotFoundError:
            return
        seen = (file.st_mtime_ns, file.st_ino, file.st_size)
        if seen == self._seen:
            return
        # The serving thread takes the lock for an RPC and must never wait for the disk, so the file
        # is read before the lock is taken. Its contents are out of date if an RPC arrived in
        # between.
        try:
            asked = read_control(self._run)
        except ControlValueError:
            self._seen = seen  # the error is counted once
            raise
        with self._lock:
            if self._unkept:
                return
            self._seen, self._revision = seen, asked.revision
            self.apply(asked.change)

    def _keep(self, change: Change) -> tuple[()]:
        try:
            ask(self._run, change)
        finally:
            with self._lock:
                self._unkept -= 1
        return ()

    def _tell(self) -> None:
        self._writer.set_gauges(control=self._settings())
        if self._recorder is not None:
            sampler = self._recorder.sampler
            rate = sampler.rate if sampler.recording else 0.0
            self._writer.set_gauges(recording=sampler.recording, rate=rate)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "revision": self._revision,
            "labels": list(self._selection.labels),
        }
        if self._recorder is not None:
            sampler = self._recorder.sampler
            governed = sampler.every is None
            settings |= {
                "every": sampler.every,
                "budget": sampler.budget if governed else None,
                "per_head": self._recorder.per_head,
            }
        return settings


def _apply(change: Change, recorder: Recorder) -> None:
    sampler = recorder.sampler
    if change.recording is not None:
        (sampler.start if change.recording else sampler.stop)()
    if change.every is not None and change.every != sampler.every:
        sampler.set(every=change.every)
    if change.budget is not None and (sampler.every, sampler.budget) != (None, change.budget):
        sampler.set(budget=change.budget)
    if change.per_head is not None:
        recorder.per_head = change.per_head
