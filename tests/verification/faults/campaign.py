"""Test thousands of damaged runs, each in a process that may crash, hang or grow without harm.

A process forked from one that has imported everything works through cases until one of them kills
it or its time is up. The current case is in shared memory, so that a crash can be attributed.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.odd_runs import ODD, RECORDED, ROOT

from driftscope.trace.segments import digest_of
from verification.faults.cases import Case, case_of, figures_of, run_case

LIMIT_S = 10
"""CPU time of its process after which a case counts as hanging, in seconds."""
WAITING = 6
"""Multiple of it after which a case counts as hanging on the clock: other processes take their
share of the machine."""
MEMORY_BYTES = 1 << 30
"""Most memory that a case may add to its process, in bytes."""
_TICKS = os.sysconf("SC_CLK_TCK")
CASES_PER_PROCESS = 400


@dataclass(slots=True, kw_only=True)
class Found:
    """Results of the cases so far."""

    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of cases by mutation and command."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Names of failed cases by failure."""

    sound: int = 0
    """Number of sound runs of which copies were damaged."""

    def fail(self, what: str, case: Case) -> None:
        """Record a case that failed."""
        self.failures.setdefault(what, []).append(case.name)


def sound_runs(folder: Path) -> list[Path]:
    """Write to `folder` the recorded runs and those unusual runs of the tests that can be read,
    each with the digests of its sealed files as this version writes them."""
    runs = [
        Path(shutil.copytree(ROOT / name, folder / name.replace("/", "-"))) for name in RECORDED
    ]
    runs += [write(folder / name.replace(" ", "-")) for name, write in sorted(ODD.items())]
    for run in runs:
        _note_digests(run)
    return [run for run in runs if _readable(run)]


def _note_digests(run: Path) -> None:
    for path in run.glob("status-*.json"):
        status = json.loads(path.read_text())
        mine = run.glob(f"*-{status['source']}-*.parquet")
        status["digests"] = {path.name: digest_of(path) for path in mine}
        path.write_text(json.dumps(status))


def _readable(run: Path) -> bool:
    try:
        figures_of(run)
    except Exception:  # an unusual run that cannot be read
        return False
    return True


def campaign(
    seconds: float,
    processes: int,
    first: int = 0,
    limit_s: float = LIMIT_S,
    most: int = sys.maxsize,
) -> Found:
    """Work through `most` cases from number `first` on, or those of `seconds`; a case that takes
    longer than `limit_s` counts as hanging."""
    found, deadline = Found(), time.monotonic() + seconds
    _import_everything()
    with tempfile.TemporaryDirectory(prefix="driftscope-faults-") as name:
        folder = Path(name)
        sound = sound_runs(folder / "sound")
        found.sound = len(sound)
        known = {run: figures_of(run) for run in sound}
        number, end = first, first + most
        running: dict[Any, _Worker] = {}
        while running or (number < end and time.monotonic() < deadline):
            while len(running) < processes and number < end and time.monotonic() < deadline:
                cases = range(number, min(number + CASES_PER_PROCESS, end))
                worker = _Worker(cases, sound, known, folder, deadline)
                number = cases.stop
                running[worker.process] = worker
            for process, worker in list(running.items()):
                if worker.over(found, limit_s):
                    del running[process]
            time.sleep(0.02)
    return found


_IMPORTED_LATE = (
    "duckdb",
    "pydantic",
    "driftscope.pipeline",
    "driftscope.cli.ingest",
    "driftscope.ingest.run_directory",
    "driftscope.analysis.compare",
    "driftscope.cli.run_reports",
    "driftscope.cli.screens.watch",
    "driftscope_reports.html",
)
"""Modules that commands import when they run."""


def _import_everything() -> None:
    """Import once everything that each of the forked processes would otherwise import itself."""
    for name in _IMPORTED_LATE:
        importlib.import_module(name)


class _Worker:
    """A process that works through cases, given by their numbers, or fewer if it dies."""

    def __init__(
        self, cases: range, sound: Sequence[Path], known: Any, folder: Path, deadline: float
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._receive, send = context.Pipe(duplex=False)
        self._sound, self._folder = sound, folder / str(cases.start)
        self.process = context.Process(
            target=_work, args=(cases, sound, known, self._folder, deadline, send)
        )
        self.process.start()
        self._begin(cases.start)
        send.close()

    def over(self, found: Found, limit_s: float) -> bool:
        """Read its messages; return True when it has ended, by itself or because it hung."""
        while self._receive.poll():
            try:
                number, what = self._receive.recv()
            except EOFError:
                break
            case = case_of(number, self._sound)
            found.cases[case.mutation, case.command] += 1
            if what:
                found.fail(what, case)
            self._begin(number + 1)
        if self.process.is_alive():
            case = case_of(self._at, self._sound)
            busy, passed = self._cpu_s() - self._cpu, time.monotonic() - self._since
            if busy < limit_s and passed < WAITING * limit_s:
                return False
            self.process.kill()
            self.process.join()
            found.fail(f"took more than {limit_s:g} s", case)
        elif self.process.exitcode:
            found.fail(f"ended with {self.process.exitcode}", case_of(self._at, self._sound))
        self.process.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        return True

    def _begin(self, number: int) -> None:
        self._at, self._since, self._cpu = number, time.monotonic(), self._cpu_s()

    def _cpu_s(self) -> float:
        """Return the CPU time of the process, in seconds; 0 once it has ended."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS


def _work(
    cases: range, sound: Sequence[Path], known: Any, folder: Path, deadline: float, send: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in cases:
        if time.monotonic() > deadline:
            return
        case = case_of(number, sound)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.chdir(folder)
        before = _peak()
        try:
            run_case(case, folder, known)
            what = ""
        except BaseException as error:  # any error is what the campaign is looking for
            what = _signature(error)
        if not what and _peak() - before > MEMORY_BYTES:
            what = f"took more than {MEMORY_BYTES >> 20} MiB"
        send.send((number, what))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _signature(error: BaseException) -> str:
    """Return the error and the place in driftscope that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "driftscope" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:160]!r}"


def table(found: Found) -> Iterator[str]:
    """Yield lines with the number of cases of each kind, and the failures."""
    mutations = sorted({mutation for mutation, _ in found.cases})
    commands = sorted({command for _, command in found.cases})
    yield f"{'damaged':17}" + "".join(f"{command:>13}" for command in commands)
    for mutation in mutations:
        counts = (found.cases[mutation, command] for command in commands)
        yield f"{mutation:17}" + "".join(f"{n:13}" for n in counts)
    yield f"{found.cases.total()} cases, {sum(map(len, found.failures.values()))} failures"
    for what, cases in sorted(found.failures.items(), key=lambda item: -len(item[1])):
        yield f"{len(cases):6}  {what}"
        yield from (f"          {name}" for name in cases[:3])
