"""A process that has imported vLLM and forks a child for each engine.

The import takes longer than the rest of a tiny engine's start. When it forks, no thread and no
OpenMP team exists, so a child behaves like a separate process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PRELOADED = (
    "vllm.entrypoints.llm",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama_eagle3",
)
POLL_S = 0.02


class Forks:
    """Children of one process; `run` may be called from several threads at once."""

    def __init__(self, env: dict[str, str]) -> None:
        """`env`: the variables that vLLM reads when it is imported."""
        self._news, self._codes, self._started = threading.Condition(), dict[int, int](), 0
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def run(
        self,
        script: Path,
        arguments: Sequence[str],
        env: dict[str, str],
        log: Path,
        timeout_s: float,
    ) -> int:
        """Return the exit code of a script, negative for a signal, as in subprocess."""
        argv = [str(script), *arguments]
        with self._news:
            self._started += 1
            number = self._started
            order = {"argv": argv, "env": env, "log": str(log), "timeout_s": timeout_s}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"number": number, **order}) + "\n")
            self._news.wait_for(lambda: number in self._codes or self._process.poll() is not None)
            return self._codes.pop(number)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, code = map(int, line.split())
            with self._news:
                self._codes[number] = code
                self._news.notify_all()
        self._process.wait()
        with self._news:
            self._news.notify_all()


def main() -> None:
    """Read orders from stdin; write "number code" to stdout for each child that ended."""
    _prepare()
    for line in sys.stdin:
        if os.fork() == 0:
            order = json.loads(line)
            os.write(1, f"{order['number']} {_wait(_start(order), order['timeout_s'])}\n".encode())
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _prepare() -> None:
    from vllm.model_executor.models import registry

    # The model's capabilities are determined in a separate process, so that this one has no CUDA
    # context.
    registry._run_in_subprocess = lambda ask: ask()
    for module in PRELOADED:
        importlib.import_module(module)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("a thread is there: a fork would lack it")
    gc.collect()
    gc.freeze()  # spares vLLM's own collections at an engine's start and end this walk
    gc.unfreeze = lambda: None  # vLLM calls it at an engine's end, before it collects all garbage


def _start(order: dict[str, Any]) -> int:
    """Return the pid of the child, which leads a process group of its own."""
    if (child := os.fork()) != 0:
        return child
    code = 1
    try:
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream, end in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(end, stream)
        os.environ.clear()
        os.environ.update(order["env"])
        sys.argv = order["argv"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)
    return 0


def _leave(code: int) -> None:
    """Do everything that a process does at its end except tearing down its modules, which takes
    seconds."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(child: int, timeout_s: float) -> int:
    """Return the exit code; kill the rest of the child's group."""
    end = time.monotonic() + timeout_s
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            found = os.waitpid(child, 0)
            break
        time.sleep(POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(found[1])


if __name__ == "__main__":
    main()
