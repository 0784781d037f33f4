"""A real SGLang server, started as users start it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.sglang_process.job import ENVIRONMENT, SETTLE_S, Job, end, engine, environment

START_S = 240


@contextlib.contextmanager
def serving(job: Job, folder: Path) -> Iterator[str]:
    """Serve a job's engine; yield the server's address. Its log is `folder`/log.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {**engine(job, folder), **job.engine, "host": "127.0.0.1", "port": port}
    command = [str(ENVIRONMENT / "bin/python"), "-m", "sglang.launch_server", *_flags(options)]
    with (folder / "log.txt").open("wb") as sink:
        process = subprocess.Popen(
            command,
            env=environment(job, folder),
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
            time.sleep(SETTLE_S)
        finally:
            end(process)


def ask(address: str, body: dict[str, Any]) -> Any:
    """Return the answer of the server's /generate."""
    request = urllib.request.Request(
        f"{address}/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _flags(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value is not False:
            yield f"--{name.replace('_', '-')}"
            if value is not True:
                yield str(value)


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        time.sleep(1)
    raise RuntimeError(f"the server did not start (it ended with {process.returncode})")
