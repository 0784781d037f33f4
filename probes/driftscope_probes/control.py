"""Changes a running probe: applies a change in a recording process, and requests one from
outside.

A change comes over vLLM's RPC or in the control file, and both ways end in `Control.apply`. A
change received over RPC is also written to the control file, so that the run's other processes
apply it; they read the file on their writer's thread.

`reach` controls the probe of a running engine, through its server's URL or its run directory. A
worker sends its `driftscope.trace.status.Status` as JSON. The server on the port is not
trusted, so every field is checked here for its type and bounds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from driftscope.boundary.bounds import MAX_TEXT_CHARS, validated
from driftscope.boundary.http_peer import OK, BadUrlError, Limits, ServerUrl, ask, public
from driftscope.boundary.text import key_from, redacted, shown
from driftscope.errors import ControlError, PeerError
from driftscope.trace import control
from driftscope.trace.control import (
    CONTROL,
    Change,
    ControlValueError,
    read_control,
)
from driftscope.trace.manifest import read_manifest
from driftscope.trace.status import StartFault, Status, read_faults, read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.sampler import RequestSelection

if TYPE_CHECKING:
    from driftscope_probes.recorder import Recorder

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
            control.ask(self._run, change)
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


Process = dict[str, Any]
MAX_PROCESSES = 4096
"""Largest number of workers of one server."""


class BadStatusError(ValueError):
    """An answer that no worker gives; the message says what is wrong with it."""


def processes_in(content: bytes) -> list[Process]:
    """Return the status of each worker that has a drafter, or {"error": words} in its place.

    Raises BadStatusError.
    """
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadStatusError("no JSON") from error
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) > MAX_PROCESSES:
        raise BadStatusError("no list of results")
    statuses = [_process(one) for one in results if one is not None]
    if not statuses:
        raise BadStatusError("no worker of it has a drafter")
    return statuses


def _process(value: Any) -> Process:
    if not isinstance(value, dict):
        raise BadStatusError("a result that is no object")
    if "error" in value:
        if not isinstance(value["error"], str):
            raise BadStatusError("error: no text")
        return {"error": value["error"][:MAX_TEXT_CHARS]}
    try:
        status = validated(Status, value)
        settings = (field.name for field in dataclasses.fields(Change))
        Change.checked({name: status.control.get(name) for name in settings})
    except ValueError as error:
        raise BadStatusError(str(error)[:MAX_TEXT_CHARS]) from error
    return {"run": str(value.get("run", ""))[:MAX_TEXT_CHARS], **asdict(status)}


METHOD = "driftscope_control"
"""Name of the method on vLLM's workers: `llm.collective_rpc(METHOD, args=("set",), kwargs={"every":
4})`."""
RPC_S = 20.0
"""Longest time for the workers to answer, in seconds; they do so between two steps."""
ANSWER_S = 5.0
"""Longest time for a run's processes to apply its control file, in seconds. They check it every
half second, and rewrite their status as often."""
POLL_S = 0.1
LIMITS = Limits(seconds=RPC_S + ANSWER_S, octets=4 << 20)
"""Limits on time and size of one answer of the workers."""
API_KEY = "VLLM_API_KEY"
"""Environment variable with the server's key, unless another variable is named."""

Processes = list[dict[str, Any]]
"""One `Status` as JSON per process."""


class Remote(Protocol):
    """A probe in another process. Methods raise ControlError; TraceError for a run directory."""

    def status(self) -> Processes:
        """Return the status of its processes."""

    def change(self, change: Change) -> Processes:
        """Apply the given values; return the status of the processes afterwards."""


def reach(target: str, *, api_key_env: str | None = None) -> Remote:
    """Return the probe behind a URL or in a run directory.

    `api_key_env` names the environment variable with the server's key; None: API_KEY, if it is set.
    Raises UsageError for a key that cannot be used.
    """
    if not target.startswith(("http://", "https://")):
        return _Run(Path(target))
    named = api_key_env or (API_KEY if os.environ.get(API_KEY) else None)
    return _Server(target.rstrip("/"), None if named is None else key_from(named, os.environ))


class _Server:
    """A server's workers, reached through vLLM's own RPC over HTTP."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url, self._shown, self._key = url, public(url), key
        try:
            self._secrets = (*ServerUrl.parsed(url).secrets, key or "")
        except BadUrlError as error:
            raise ControlError(f"{self._shown}: no server answers there ({error})") from error

    def status(self) -> Processes:
        return self._call("status", {})

    def change(self, change: Change) -> Processes:
        values = change.given()
        recording = values.pop("recording", None)
        if recording is None:
            return self._call("set", values)
        return self._call("start" if recording else "stop", {})

    def _call(self, action: str, values: Mapping[str, Any]) -> Processes:
        body = {"method": METHOD, "args": [action], "kwargs": values, "timeout": RPC_S}
        answer = self._post("/collective_rpc", json.dumps(body).encode())
        try:
            processes = processes_in(answer)
        except BadStatusError as error:
            words = shown(str(error))
            raise ControlError(
                f"{self._shown}: not an answer of vLLM's workers ({words})"
            ) from error
        if failed := [process["error"] for process in processes if "error" in process]:
            raise ControlError(f"{self._shown}: {shown(redacted(failed[0], self._secrets))}")
        return processes

    def _post(self, path: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            answer = ask(self._url + path, LIMITS, body=body, headers=headers)
        except PeerError as error:
            raise ControlError(f"{self._shown}: no server answers there ({error.why})") from error
        if answer.status != OK:
            raise ControlError(self._refused(answer.status))
        return answer.content

    def _refused(self, code: int) -> str:
        if code in (404, 405):
            return (
                f"{self._shown}: the server has no /collective_rpc: start it with `driftscope "
                "serve --control`, or give the run directory instead of the URL"
            )
        if code in (401, 403):
            return f"{self._shown}: not allowed (HTTP {code}); set {API_KEY}, or give --api-key-env"
        return (
            f"{self._shown}: its workers have no {METHOD} (HTTP {code}): start the server with "
            "`driftscope serve`, or with DRIFTSCOPE_TRACE set; see its log"
        )


WORKER = "worker"
"""First word of a worker's source, which samples draft steps."""


class _Run:
    """A run directory's control and status files."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def status(self) -> Processes:
        faults = [_down(fault) for fault in read_faults(self._run)]
        if not faults:
            read_manifest(self._run)
        return [*(asdict(status) for status in read_statuses(self._run)), *faults]

    def change(self, change: Change) -> Processes:
        plain = read_manifest(self._run).drafter is None
        asked_of = [
            status.source
            for status in read_statuses(self._run)
            if not (status.closed or (plain and status.source.startswith(WORKER)))
        ]
        if not asked_of:
            raise ControlError(f"{self._run}: this run has ended, so there is no probe to control")
        if plain and change.given().keys() != {"labels"}:
            raise ControlError(
                f"{self._run}: this server has no drafter, so there are no draft steps to record; "
                "only --label and --all-labels change what it records"
            )
        try:
            revision = control.ask(self._run, change).revision
        except TimeoutError as error:
            raise ControlError(
                f"{self._run}: another process holds the lock of its control file; try again"
            ) from error
        except OSError as error:
            raise ControlError(
                f"{self._run}: cannot write there ({error.strerror}); run as a user who can"
            ) from error
        statuses = self._answers(set(asked_of), revision)
        if not any(_has(status, revision) for status in statuses):
            raise ControlError(
                f"{self._run}: no process applied the change within {ANSWER_S:g} s: none is "
                "running any more, or they run an older driftscope"
            )
        return [
            {**asdict(s), "answered": s.source not in asked_of or _has(s, revision)}
            for s in statuses
        ]

    def _answers(self, sources: set[str], revision: int) -> tuple[Status, ...]:
        deadline = time.monotonic() + ANSWER_S
        while True:
            statuses = read_statuses(self._run)
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
