"""Real engines whose trace cannot be written: on disks that fail, with a writer that is killed."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from support.engine_process.engine_main import KILL_WRITER
from support.engine_process.job import Job, Outcome, run_job
from support.small_disk import fill, small_disk

from driftscope.errors import DriftscopeError
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.status import Status, read_statuses

JOB = Job(drafter="eagle31", probe={"EVERY": "1"}, sizes=(8, 8))
DISK_KB = 2048
Fault = Callable[[Path], object]
"""Function that applies a fault to the run's disk, once the engine has begun to write there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fared:
    """Outcome of an engine whose disk failed."""

    outcome: Outcome
    statuses: tuple[Status, ...]
    """Statuses on the disk afterwards; () if the folder is gone."""


def remove(disk: Path) -> None:
    """Remove the run directory while the writer is using it."""
    shutil.rmtree(disk / "run", ignore_errors=True)


def read_only(disk: Path) -> None:
    """Make the disk read-only; a real file system refuses that while files are open for writing."""
    for path in (disk / "run").glob("*"):
        path.chmod(0o400)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False, capture_output=True)


FAULTS: Mapping[str, Fault] = {"full": fill, "removed": remove, "read-only": read_only}


def _begun(run: Path) -> bool:
    """Return whether the worker and the engine core have opened their writers: later failures
    happen while serving."""
    return (run / MANIFEST).exists() and len(list(run.glob("status-*.json"))) > 1


def with_fault(fault: Fault, folder: Path, core: str = "0") -> Fared:
    """Run JOB on a small disk to which `fault` is applied as soon as the engine records."""
    with small_disk(folder / "disk", DISK_KB) as disk:
        over = threading.Event()

        def strike() -> None:
            while not over.wait(0.01):
                if _begun(disk / "run"):
                    fault(disk)
                    return

        waiting = threading.Thread(target=strike)
        waiting.start()
        try:
            job = replace(JOB, probe={**JOB.probe, "TRACE": str(disk / "run")})
            outcome = run_job(job, folder / "job", core)
        finally:
            over.set()
            waiting.join()
        statuses: tuple[Status, ...] = ()
        with contextlib.suppress(DriftscopeError, OSError):
            statuses = read_statuses(disk / "run")
        return Fared(outcome=outcome, statuses=statuses)


@contextmanager
def silent_receiver() -> Iterator[str]:
    """Yield the URL of an OTLP endpoint that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def with_silent_receiver(folder: Path, core: str = "0") -> Fared:
    """Run JOB with telemetry to a receiver that hangs."""
    receiver: AbstractContextManager[str] = silent_receiver()
    with receiver as url:
        probe = {**JOB.probe, "OTLP": url}
        env = {"OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
        outcome = run_job(replace(JOB, probe=probe, env=env), folder / "job", core)
    return Fared(outcome=outcome, statuses=read_statuses(outcome.run))


def with_killed_writer(folder: Path, core: str = "0") -> Fared:
    """Run JOB in an engine whose writer's thread is killed as soon as it runs."""
    outcome = run_job(replace(JOB, env={KILL_WRITER: "1"}), folder / "job", core)
    return Fared(outcome=outcome, statuses=read_statuses(outcome.run))


def lost(fared: Fared) -> int:
    """Return the number of lost rows from the status files."""
    return sum(sum(status.dropped.values()) for status in fared.statuses)
