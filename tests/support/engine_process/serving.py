"""A real OpenAI-compatible server started by `driftscope serve`, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.engine_process.job import BLOCKS, CORES, Job, environment
from support.waiting import free_port, until

from driftscope_lab.trio import trio_path

READY_S = 600
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and its run directory."""

    process: subprocess.Popen[bytes]
    url: str
    run: Path

    def complete(
        self, request_id: str, *, headers: Mapping[str, str] = {}, **body: Any
    ) -> dict[str, Any]:
        """Send POST /v1/completions and return the response."""
        payload = {"model": MODEL, "temperature": 0, "ignore_eos": True, **body}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            data=json.dumps(payload).encode(),
            headers={"Content-Type": "application/json", "X-Request-Id": request_id, **headers},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def children(self) -> dict[int, str]:
        """Return pid -> title of every descendant process."""
        found, todo = {}, [self.process.pid]
        while todo:
            path = Path(f"/proc/{todo.pop()}/task")
            for task in path.glob("*/children"):
                for pid in task.read_text().split():
                    title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(pid)] = title.decode(errors="replace")
                    todo.append(int(pid))
        return found

    def is_ready(self) -> bool:
        """Return whether it answers, or has ended."""
        if self.process.poll() is not None:
            return True
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
            return True
        time.sleep(0.3)
        return False


@contextlib.contextmanager
def serve_all(
    folder: Path,
    options: Mapping[str, tuple[str, ...]],
    environs: Mapping[str, Mapping[str, str]] = {},
) -> Iterator[dict[str, Server]]:
    """Yield a server for each set of options, by name; they start in parallel, one per core.

    `environs` has, by name, what the environment of a server differs in.
    """
    with contextlib.ExitStack() as ends, ThreadPoolExecutor(len(CORES)) as pool:

        def start(name: str, core: str) -> Server:
            (folder / name).mkdir()
            environ = environs.get(name, {})
            server = serve(folder / name, *options[name], core=core, environ=environ)
            return ends.enter_context(server)

        yield dict(zip(options, pool.map(start, options, CORES), strict=True))


@contextlib.contextmanager
def serve(
    folder: Path,
    *options: str,
    drafter: str = "eagle31",
    core: str = "0",
    command: tuple[str, ...] = (sys.executable, "-m", "driftscope"),
    environ: Mapping[str, str] = {},
) -> Iterator[Server]:
    """Yield `driftscope serve` on a free port, ready; it is killed at the end if it still runs.

    It records every round unless `options` change that. `command` is the `driftscope` to start,
    `environ` what its environment differs in. Raises RuntimeError if it does not come up.
    """
    port, run, log = free_port(), folder / "run", folder / "server.log"
    model = str(trio_path() / drafter)
    speculation = {"method": "eagle3", "model": model, "num_speculative_tokens": 8}
    arguments = [
        *(*command, "serve", str(trio_path() / "target"), "--trace", str(run)),
        *("--speculative-config", json.dumps(speculation), "--dtype", "float32"),
        *("--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"),
        *("--num-gpu-blocks-override", str(BLOCKS), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--per-request-spec-decode-metrics", "detailed", *options),
        *(() if "--every" in options or "--budget" in options else ("--every", "1")),
    ]
    variables = {**environment(Job(drafter=drafter, processes=True), folder, core), **environ}
    with log.open("wb") as sink:
        process = subprocess.Popen(arguments, env=variables, stdout=sink, stderr=subprocess.STDOUT)
    server = Server(process, f"http://127.0.0.1:{port}", run)
    try:
        until(server.is_ready, READY_S)
        if process.poll() is not None:
            raise RuntimeError(f"server not ready:\n{log.read_text(errors='replace')[-4000:]}")
        yield server
    finally:
        for pid in [*server.children(), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait(30)
