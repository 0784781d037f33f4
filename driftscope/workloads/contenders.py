"""Servers that are compared: started in turn, or running already, and asked the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from driftscope.analysis.replays import CONTENDER, SERVER_RUN, SPECULATION, START
from driftscope.boundary.http_peer import OK, AnswerLimits, ask
from driftscope.boundary.text import dumps
from driftscope.distributions import CACHE
from driftscope.errors import DriftscopeError, PeerError
from driftscope.trace.manifest import MANIFEST, read_manifest
from driftscope.workloads.client.replay import Done, Order, Watcher, replay

NO_SPECULATION = "no speculation"
"""Label of the server without a drafter."""
SERVER_FOLDER = "server"
"""Folder, beside the replay's, into which a server records."""
READY_S = 900.0
"""Longest start-up time of a server, in seconds: enough for a large model that is read from a cold
disk and compiled."""


def ask_in_turn(
    contenders: Sequence[Contender | Running],
    order: Order,
    folder: Path,
    *,
    rounds: int = 1,
    watcher: Watcher | None = None,
) -> Iterator[tuple[str, Done]]:
    """Replay `order` to each server, in `rounds`, and yield its label and what was done when a
    replay ends.

    A contender is started for each of its replays and stopped after it. Every second round goes the
    other way round, so that what changes with time affects all of them alike. Stops after a replay
    that the user stopped. Raises DriftscopeError.
    """
    for number in range(rounds):
        for contender in contenders[::-1] if number % 2 else contenders:
            # No space, so that a path can be pasted.
            place = _unused(folder, re.sub(r"[^\w.]+", "-", contender.label))
            with (
                contextlib.nullcontext(contender)
                if isinstance(contender, Running)
                else running(contender, place, ready_s=READY_S)
            ) as server:
                note = _note(order, contender, server)
                asked = replace(order, url=server.url, run=place / "client", note=note)
                done = replay(asked, watcher)
            yield contender.label, done
            if done.stopped:
                return


def _unused(folder: Path, name: str) -> Path:
    """Return the first folder of that name, then "name-2" and so on, that no round has used."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(folder / one for one in names if not (folder / one).exists())


def _note(order: Order, contender: Contender | Running, server: Running) -> dict[str, Any]:
    """Return what is known of the server, for the manifest of a replay of it."""
    note = {**order.note, CONTENDER: contender.label, START: server.start}
    if isinstance(contender, Running):
        return {**note, SPECULATION: contender.label != NO_SPECULATION}
    return {
        **note,
        SERVER_RUN: SERVER_FOLDER,
        SPECULATION: dict(contender.speculation) if contender.speculation else None,
        "drafter_bytes": _weights(contender),
        "server_start_s": round(server.start_s, 1),
    }


def _weights(contender: Contender) -> int | None:
    """Return the size in bytes of the drafter's weight files; None if it is not a local folder."""
    folder = Path(str((contender.speculation or {}).get("model", "")))
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")] if folder.name else []
    return sum(sizes) or None


def recorded_in(folder: Path) -> list[tuple[Path, str]]:
    """Return the runs below the folder of `ask_in_turn`, each with its label: of each server the
    replays of all rounds, and what a server with a drafter recorded in the first one."""
    found: list[tuple[Path, str]] = []
    run_ids: set[str] = set()
    for client in sorted(folder.glob("*/client"), key=lambda run: read_manifest(run).created_s):
        label = str(read_manifest(client).workload[CONTENDER])
        server = client.parent / SERVER_FOLDER
        if label not in run_ids and label != NO_SPECULATION and (server / MANIFEST).is_file():
            found.append((server, label))
        found.append(
            (client, f"{label} (client)" if label not in run_ids else f"{label} ({len(found)})")
        )
        run_ids.add(label)
    return found


POLL_S = 0.5
STOP_S = 60.0
"""Time in which a server must finish and close its trace before it is killed, in seconds."""
HOST = "127.0.0.1"
HEALTH = AnswerLimits(seconds=2.0, octets=1 << 16)
PROBE = "DRIFTSCOPE_"
"""Beginning of the names of the probe's settings."""
VLLM_KEY = "VLLM_API_KEY"
"""Environment variable from which vLLM's server reads its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server to start, and to compare with others."""

    label: str
    model: str
    speculation: Mapping[str, Any] | None
    """Value of vLLM's --speculative-config; None: served without speculation."""
    options: Sequence[str] = ()
    """Further options of `driftscope serve` and vLLM."""
    environ: Mapping[str, str] = field(default_factory=dict)
    api_key_env: str | None = None
    """Variable of the caller's environment with the key that the server requires."""

    def command(self, port: int, trace: Path) -> list[str]:
        """Return the start command, `driftscope serve`."""
        serve = [sys.executable, "-m", "driftscope", "serve", self.model, "--trace", str(trace)]
        where = ["--host", HOST, "--port", str(port), *self.options]
        if self.speculation is None:
            return [*serve, "--no-speculation", *where]
        metrics = ["--per-request-spec-decode-metrics", "detailed"]
        if any(option.startswith(metrics[0]) for option in self.options):
            metrics = []
        config = dumps(self.speculation)
        return [*serve, "--speculative-config", config, *metrics, *where]

    def environment(self) -> dict[str, str]:
        """Return the caller's environment without its settings of the probe: each server writes a
        run of its own."""
        kept = {k: v for k, v in os.environ.items() if k == CACHE or not k.startswith(PROBE)}
        key = {} if self.api_key_env is None else {VLLM_KEY: os.environ[self.api_key_env].strip()}
        return {**kept, **self.environ, **key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers requests."""

    label: str
    url: str
    start: float = 0.0
    """Time of its start, in seconds since the Unix epoch; 0 if it was running already."""
    start_s: float = 0.0
    """Time from start to the first answer, in seconds."""


@contextlib.contextmanager
def running(contender: Contender, folder: Path, *, ready_s: float) -> Iterator[Running]:
    """Start the server, wait until it answers, and always stop it at the end. If this process is
    asked to end (SIGTERM), SystemExit is raised here and the server is stopped as well.

    The server's log and trace are written to `folder`. Raises DriftscopeError when the server does
    not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trace, log, port = folder / SERVER_FOLDER, folder / "server.log", _free_port()
    begun, started = time.monotonic(), time.time()
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
            yield Running(
                label=contender.label,
                url=url,
                start=started,
                start_s=time.monotonic() - begun,
            )
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
                f"the server with {label} ended with code {code} before it answered "
                f"({_cause(log)}); its log is {log}"
            )
        with contextlib.suppress(PeerError):
            if ask(f"{url}/health", HEALTH).status == OK:
                return
        time.sleep(POLL_S)
    raise DriftscopeError(f"the server with {label} did not answer in time; its log is {log}")


def _cause(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    errors = [at for at, line in enumerate(lines) if "rror: " in line]
    if not errors:
        return "no error in its log"
    # pydantic writes what is wrong in the line below.
    below = 2 if "ValidationError: " in lines[errors[-1]] else 1
    return " ".join(line.strip() for line in lines[errors[-1] :][:below])[-300:]


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
