"""Run real engines whose trace cannot be written; report the output, the losses and the time.

    PYTHONPATH=tests python -m verification.disk_faults

prints a line for each fault: tokens equal to those without the probe, rows lost by cause, and the
time of the requests as a ratio to that of the same engine with nothing wrong.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
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


def with_fault(fault: Fault | None, folder: Path, core: str = "0") -> Fared:
    """Run JOB on a small disk to which `fault` is applied as soon as the engine records."""
    with small_disk(folder / "disk", DISK_KB) as disk:
        over = threading.Event()

        def strike() -> None:
            while not over.wait(0.01):
                if fault and _begun(disk / "run"):
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


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="driftscope-disk-") as name:
        folder = Path(name)
        off = run_job(replace(JOB, probe={}), folder / "off")
        sound = with_fault(None, folder / "sound")
        print(
            f"{'fault':16} {'tokens equal':>12} {'rows lost':>10} {'reported by':>24} {'time':>6}"
        )
        tried = {"none": sound}
        for fault, strike in FAULTS.items():
            tried[fault] = with_fault(strike, folder / fault)
        tried["killed writer"] = with_killed_writer(folder / "writer")
        tried["hung receiver"] = with_silent_receiver(folder / "receiver")
        for fault, fared in tried.items():
            same = sum(fared.outcome.tokens(b) == off.tokens(b) for b in range(len(JOB.sizes)))
            ways = [
                "status" * bool(lost(fared)),
                "errors" * any(status.errors for status in fared.statuses),
                "log" * ("rows are being lost" in fared.outcome.log),
            ]
            ratio = fared.outcome.batches[-1]["seconds"] / sound.outcome.batches[-1]["seconds"]
            print(
                f"{fault:16} {same:>7} of {len(JOB.sizes)} {lost(fared):10} "
                f"{', '.join(filter(None, ways)) or '-':>24} {ratio:6.2f}"
            )
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
