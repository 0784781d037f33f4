"""Controls the probe of a running engine, through its server's URL or its run directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from driftscope.boundary.http_peer import OK, Limits, ask
from driftscope.boundary.secret_text import key_from, redacted
from driftscope.boundary.server_url import BadUrlError, ServerUrl, public
from driftscope.boundary.terminal_text import shown
from driftscope.errors import ControlError, PeerError
from driftscope.trace.format import control_file
from driftscope.trace.format.control_file import Change
from driftscope.trace.format.manifest import read_manifest
from driftscope.trace.format.start_fault import StartFault, read_faults
from driftscope.trace.format.status import Status, read_statuses
from driftscope_probes.control.process_status import BadStatusError, processes_in

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
        read_manifest(self._run)
        asked_of = [status.source for status in read_statuses(self._run) if not status.closed]
        if not asked_of:
            raise ControlError(f"{self._run}: this run has ended, so there is no probe to control")
        try:
            revision = control_file.ask(self._run, change).revision
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
        return [{**asdict(s), "answered": _has(s, revision)} for s in statuses]

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
