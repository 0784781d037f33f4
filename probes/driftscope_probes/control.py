"""Changes a running probe through the control file of its run: applies a change in a recording
process, and requests one from outside.

Each process of a run reads the file on its writer's thread.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftscope.errors import ControlError
from driftscope.trace import control
from driftscope.trace.control import (
    CONTROL,
    ControlValueError,
    ProbeChange,
    read_control,
)
from driftscope.trace.manifest import read_manifest
from driftscope.trace.status import StartFault, Status, read_faults, read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.sampler import RequestSelection

if TYPE_CHECKING:
    from driftscope_probes.recorder import Recorder


class Control:
    """Applies the changes in a run's control file in one process while it records."""

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
        self._tell()

    def watch(self) -> None:
        """Follow the control file, with one `stat` each time that the writer checks."""
        self._writer.watch(self._look)

    def apply(self, change: ProbeChange) -> None:
        """Apply the values that differ; raises ControlValueError for a budget if not `governed`."""
        if change.budget is not None and not self._governed:
            raise ControlValueError("budget: not available with tensor parallelism; give every")
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
        version = (file.st_mtime_ns, file.st_ino, file.st_size)
        if version == self._seen:
            return
        try:
            asked = read_control(self._run)
        except ControlValueError:
            self._seen = version  # the error is counted once
            raise
        self._seen, self._revision = version, asked.revision
        self.apply(asked.change)

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
            }
        return settings


def _apply(change: ProbeChange, recorder: Recorder) -> None:
    sampler = recorder.sampler
    if change.recording is not None:
        (sampler.start if change.recording else sampler.stop)()
    if change.every is not None and change.every != sampler.every:
        sampler.set(every=change.every)
    if change.budget is not None and (sampler.every, sampler.budget) != (None, change.budget):
        sampler.set(budget=change.budget)


ANSWER_S = 5.0
"""Longest time for a run's processes to apply its control file, in seconds. They check it every
half second, and rewrite their status as often."""
POLL_S = 0.1
Processes = list[dict[str, Any]]
"""One `Status` as JSON per process."""
WORKER = "worker"
"""First word of a worker's source, which samples draft steps."""


def processes_of(run: Path) -> Processes:
    """Return the status of the run's processes. Raises TraceError."""
    faults = [_down(fault) for fault in read_faults(run)]
    if not faults:
        read_manifest(run)
    return [*(asdict(status) for status in read_statuses(run)), *faults]


def change_run(run: Path, change: ProbeChange) -> Processes:
    """Apply the given values in the run's processes; return their status afterwards. Raises
    ControlError and TraceError."""
    plain = read_manifest(run).drafter is None
    asked_of = [
        status.source
        for status in read_statuses(run)
        if not (status.closed or (plain and status.source.startswith(WORKER)))
    ]
    if not asked_of:
        raise ControlError(f"{run}: this run has ended, so there is no probe to control")
    if plain and change.given().keys() != {"labels"}:
        raise ControlError(
            f"{run}: this server has no drafter, so there are no draft steps to record; "
            "only --label and --all-labels change what it records"
        )
    try:
        revision = control.ask(run, change).revision
    except TimeoutError as error:
        raise ControlError(
            f"{run}: another process holds the lock of its control file; try again"
        ) from error
    except OSError as error:
        raise ControlError(
            f"{run}: cannot write there ({error.strerror}); run as a user who can"
        ) from error
    statuses = _answers(run, set(asked_of), revision)
    if not any(_has(status, revision) for status in statuses):
        raise ControlError(
            f"{run}: no process applied the change within {ANSWER_S:g} s: none is "
            "running any more, or they run an older driftscope"
        )
    return [
        {**asdict(s), "answered": s.source not in asked_of or _has(s, revision)} for s in statuses
    ]


def _answers(run: Path, sources: set[str], revision: int) -> tuple[Status, ...]:
    deadline = time.monotonic() + ANSWER_S
    while True:
        statuses = read_statuses(run)
        waiting = [s for s in statuses if s.source in sources and not s.closed]
        if all(_has(s, revision) for s in waiting) or time.monotonic() > deadline:
            return statuses
        time.sleep(POLL_S)


def _down(fault: StartFault) -> dict[str, Any]:
    """Return the status of a process that records nothing."""
    status = Status(
        source=fault.source,
        closed=True,
        flushed_s=fault.time_s,
        reason=f"nothing is recorded: {fault.reason}",
    )
    return {**asdict(status), "down": True}


def _has(status: Status, revision: int) -> bool:
    return int(status.control.get("revision", 0)) >= revision
