"""A server that a benchmark starts and stops itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from driftscope.boundary import strict_json
from driftscope.boundary.http_peer import OK, Limits, ask
from driftscope.errors import DriftscopeError, PeerError
from driftscope_probes.server.vllm_server import server_command

POLL_S = 0.5
STOP_S = 60.0
"""Time in which a server must finish and close its trace before it is killed, in seconds."""
HOST = "127.0.0.1"
HEALTH = Limits(seconds=2.0, octets=1 << 16)
VLLM_KEY = "VLLM_API_KEY"
"""Environment variable from which vLLM's server reads its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One server of a benchmark."""

    label: str
    model: str
    speculation: Mapping[str, Any] | None
    """Value of vLLM's --speculative-config; None: served without speculation."""
    options: Sequence[str] = ()
    """Further options of vLLM."""
    environ: Mapping[str, str] = field(default_factory=dict)
    api_key_env: str | None = None
    """Variable of the caller's environment with the key that the server requires."""
    every: int | None = None
    """Record every n-th draft step; None: as many as the probe's overhead budget allows."""

    def command(self, port: int, trace: Path) -> list[str]:
        """Return the start command: `driftscope serve`, or plain vLLM if there is no drafter to
        record."""
        where = ["--host", HOST, "--port", str(port), *self.options]
        if self.speculation is None:
            return server_command(self.model, where)
        every = [] if self.every is None else ["--every", str(self.every)]
        metrics = ["--per-request-spec-decode-metrics", "detailed"]
        if any(option.startswith(metrics[0]) for option in self.options):
            metrics = []
        return [
            sys.executable,
            "-m",
            "driftscope",
            "serve",
            self.model,
            "--trace",
            str(trace),
            *every,
            "--speculative-config",
            strict_json.dumps(self.speculation),
            *metrics,
            *where,
        ]

    def environment(self) -> dict[str, str]:
        """Return the caller's environment without its DRIFTSCOPE_* settings: each server writes a
        run of its own."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
        key = {} if self.api_key_env is None else {VLLM_KEY: os.environ[self.api_key_env].strip()}
        return {**kept, **self.environ, **key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers requests."""

    url: str
    trace: Path
    """Run directory of the server; it does not exist without speculation."""
    log: Path
    start_s: float
    """Time from start to the first answer, in seconds."""


@contextlib.contextmanager
def running(contender: Contender, folder: Path, *, ready_s: float) -> Iterator[Running]:
    """Start the server, wait until it answers, and always stop it at the end. If this process is
    asked to end (SIGTERM), SystemExit is raised here and the server is stopped as well.

    The server's log and trace are written to `folder`. Raises DriftscopeError when the server does
    not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trace, log, port = folder / "server", folder / "server.log", _free_port()
    begun = time.monotonic()
    with _sigterm_as_exit():
        with log.open("wb") as sink:
            # Use a separate session: Ctrl-C goes to the replay, which then stops the server in
            # order.
            process = subprocess.Popen(  # noqa: S603  contenders are this Python, no shell
                contender.command(port, trace),
                env=contender.environment(),
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        url = f"http://{HOST}:{port}"
        try:
            _wait(process, url, contender.label, log, begun + ready_s)
            yield Running(url=url, trace=trace, log=log, start_s=time.monotonic() - begun)
        finally:
            _stop(process)


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread: signals cannot be handled here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait(
    process: subprocess.Popen[bytes], url: str, label: str, log: Path, deadline: float
) -> None:
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            raise DriftscopeError(
                f"the server of {label} ended with code {code} before it answered "
                f"({_cause(log)}); its log is {log}"
            )
        with contextlib.suppress(PeerError):
            if ask(f"{url}/health", HEALTH).status == OK:
                return
        time.sleep(POLL_S)
    raise DriftscopeError(f"the server of {label} did not answer in time; its log is {log}")


def _cause(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    error_line = next((line for line in reversed(lines) if "rror: " in line), "no error in its log")
    return error_line.strip()[-300:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop, wait, and kill its whole session if it does not."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
