"""Reaches the probe of a running engine, by its server's URL or by its run directory."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from driftscope.errors import ControlError
from driftscope.trace.control import Change, ask
from driftscope.trace.manifest import read_manifest
from driftscope.trace.status import Status, read_statuses

METHOD = "driftscope_control"
"""Of vLLM's workers: `llm.collective_rpc(METHOD, args=("set",), kwargs={"every": 4})`."""
RPC_S = 20.0
"""Longest time that the workers get to answer; they do between two steps."""
ANSWER_S = 5.0
"""Longest time for the processes of a run to take up its control file. They look at it every half
second, and rewrite their status as often."""
POLL_S = 0.1

Processes = list[dict[str, Any]]
"""One `Status` as JSON per process."""


class Remote(Protocol):
    """A probe elsewhere. Every method raises ControlError, or TraceError for a run directory."""

    def status(self) -> Processes:
        """How its processes fare."""

    def change(self, change: Change) -> Processes:
        """Change what is given; how its processes fare with that."""


def reach(target: str) -> Remote:
    """The probe behind a URL or in a run directory."""
    if target.startswith(("http://", "https://")):
        return _Server(target.rstrip("/"))
    return _Run(Path(target))


class _Server:
    """vLLM's own RPC to its workers, over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def status(self) -> Processes:
        return self._call("status", {})

    def change(self, change: Change) -> Processes:
        values = change.given()
        recording = values.pop("recording", None)
        if recording is None:
            return self._call("set", values)
        return self._call("start" if recording else "stop", {})

    def _call(self, action: str, values: dict[str, Any]) -> Processes:
        body = {"method": METHOD, "args": [action], "kwargs": values, "timeout": RPC_S}
        answer = self._post("/collective_rpc", json.dumps(body).encode())
        try:
            results = [one for one in json.loads(answer)["results"] if one is not None]
            if not results:
                raise ValueError("no worker of it has a drafter")
            failed = [result["error"] for result in results if "error" in result]
        except (ValueError, TypeError, KeyError) as error:
            raise ControlError(f"{self._url}: not an answer of vLLM's workers ({error})") from error
        if failed:
            raise ControlError(f"{self._url}: {failed[0]}")
        return list(results)

    def _post(self, path: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            request = urllib.request.Request(self._url + path, body, headers)
            with urllib.request.urlopen(request, timeout=RPC_S + ANSWER_S) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            error.close()
            raise ControlError(self._refused(error.code)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise ControlError(f"{self._url}: no server answers there ({why})") from error

    def _refused(self, code: int) -> str:
        if code in (404, 405):
            return (
                f"{self._url}: no /collective_rpc there: start the server with `driftscope serve "
                "--control`, or give the run directory instead of the URL"
            )
        if code in (401, 403):
            return f"{self._url}: not allowed (HTTP {code}); set VLLM_API_KEY"
        return (
            f"{self._url}: its workers have no {METHOD} (HTTP {code}): start the server with "
            "`driftscope serve`, or with DRIFTSCOPE_TRACE set; its log says more"
        )


class _Run:
    """The control and status files of a run directory."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def status(self) -> Processes:
        read_manifest(self._run)
        return [asdict(status) for status in read_statuses(self._run)]

    def change(self, change: Change) -> Processes:
        read_manifest(self._run)
        asked_of = [status.source for status in read_statuses(self._run) if not status.closed]
        if not asked_of:
            raise ControlError(f"{self._run}: this run has ended, there is no probe to control")
        try:
            revision = ask(self._run, change).revision
        except OSError as error:
            raise ControlError(
                f"{self._run}: cannot write there ({error.strerror}); give a user that may"
            ) from error
        statuses = self._answers(set(asked_of), revision)
        if not any(_has(status, revision) for status in statuses):
            raise ControlError(
                f"{self._run}: no process took it up within {ANSWER_S:g} s: none runs any more, or "
                "they are of an older driftscope"
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


def _has(status: Status, revision: int) -> bool:
    return int(status.control.get("revision", 0)) >= revision
