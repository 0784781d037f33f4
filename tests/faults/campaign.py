"""Thousands of damaged runs, each in a process that may crash, hang or grow without harm.

A process forked from one that has imported everything works through cases until one of them kills
it or its time is up; what it was at is in shared memory, so that a crash has a name.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from support.odd_runs import ODD, RECORDED, ROOT

from driftscope.trace.format.segment import digest_of
from faults import peers
from faults.cases import Case, case_of, figures_of, run_case

LIMIT_S = 10
"""A case that takes longer hangs."""
MEMORY_BYTES = 1 << 30
"""What a case may add to the memory of its process."""
CASES_PER_PROCESS = 400


@dataclass(slots=True, kw_only=True)
class Found:
    """What came of the cases so far."""

    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By mutation and command."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Cases by what was wrong."""

    def fail(self, what: str, case: Case) -> None:
        """Note a case that failed."""
        self.failures.setdefault(what, []).append(case.name)


def sound_runs(folder: Path) -> list[Path]:
    """Write to `folder` the recorded runs and the odd ones of the tests that can be read, each
    with the digests of its sealed files, as this version notes them."""
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
        status["digests"] = {each.name: digest_of(each) for each in mine}
        path.write_text(json.dumps(status))


def _readable(run: Path) -> bool:
    try:
        figures_of(run)
    except Exception:  # a run that is odd because it cannot be read
        return False
    return True


def campaign(seconds: float, processes: int, first: int = 0, limit_s: float = LIMIT_S) -> Found:
    """Work through cases from number `first` on, for so many seconds; one that takes longer than
    `limit_s` hangs."""
    found, deadline = Found(), time.monotonic() + seconds
    _import_everything()
    with tempfile.TemporaryDirectory(prefix="driftscope-faults-") as name, peers.running():
        folder = Path(name)
        sound = sound_runs(folder / "sound")
        known = {run: figures_of(run) for run in sound}
        numbers = count(first, CASES_PER_PROCESS)
        running: dict[Any, _Worker] = {}
        while running or time.monotonic() < deadline:
            while len(running) < processes and time.monotonic() < deadline:
                worker = _Worker(next(numbers), sound, known, folder, deadline)
                running[worker.process] = worker
            for process, worker in list(running.items()):
                if worker.over(found, limit_s):
                    del running[process]
            time.sleep(0.02)
    return found


_IMPORTED_LATE = (
    "duckdb",
    "openai",
    "pydantic",
    "driftscope.analysis.summary.summarise",
    "driftscope.analysis.compare.run_comparison",
    "driftscope.cli.shared.analysis_inputs",
    "driftscope.cli.screens.watch_loop",
    "driftscope.telemetry.export.exporters",
    "driftscope.telemetry.export.recorded_run",
    "driftscope.workloads.client.replay",
    "driftscope_reports.formats",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
"""What commands import when they run."""


def _import_everything() -> None:
    """Import once what each of the forked processes would import for itself."""
    for name in _IMPORTED_LATE:
        importlib.import_module(name)


class _Worker:
    """A process at CASES_PER_PROCESS cases, or fewer when it dies."""

    def __init__(
        self, first: int, sound: Sequence[Path], known: Any, folder: Path, deadline: float
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._receive, send = context.Pipe(duplex=False)
        self._sound, self._folder = sound, folder / str(first)
        self._at, self._since = first, time.monotonic()
        self.process = context.Process(
            target=_work,
            args=(first, first + CASES_PER_PROCESS, sound, known, self._folder, deadline, send),
        )
        self.process.start()
        send.close()

    def over(self, found: Found, limit_s: float) -> bool:
        """Take what it has said; True when it has ended, of itself or because it hung."""
        while self._receive.poll():
            try:
                number, what = self._receive.recv()
            except EOFError:
                break
            case = case_of(number, self._sound)
            found.cases[case.mutation, case.command] += 1
            if what:
                found.fail(what, case)
            self._at, self._since = number + 1, time.monotonic()
        if self.process.is_alive():
            if time.monotonic() - self._since < limit_s:
                return False
            self.process.kill()
            self.process.join()
            found.fail(f"took more than {limit_s:g} s", case_of(self._at, self._sound))
        elif self.process.exitcode:
            found.fail(f"ended with {self.process.exitcode}", case_of(self._at, self._sound))
        self.process.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        return True


def _work(
    first: int,
    end: int,
    sound: Sequence[Path],
    known: Any,
    folder: Path,
    deadline: float,
    send: Any,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in range(first, end):
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
        except BaseException as error:  # whatever it is, it is what the campaign looks for
            what = _signature(error)
        if not what and _peak() - before > MEMORY_BYTES:
            what = f"took more than {MEMORY_BYTES >> 20} MiB"
        send.send((number, what))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _signature(error: BaseException) -> str:
    """The error and the place in driftscope that it came out of."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "driftscope" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:160]!r}"


def table(found: Found) -> Iterator[str]:
    """Lines: how many cases of each kind, and what failed."""
    mutations = sorted({mutation for mutation, _ in found.cases})
    commands = sorted({command for _, command in found.cases})
    yield f"{'damaged':17}" + "".join(f"{command:>13}" for command in commands)
    for mutation in mutations:
        counts = (found.cases[mutation, command] for command in commands)
        yield f"{mutation:17}" + "".join(f"{n:13}" for n in counts)
    yield f"{found.cases.total()} cases, {sum(map(len, found.failures.values()))} failures"
    for what, cases in sorted(found.failures.items(), key=lambda each: -len(each[1])):
        yield f"{len(cases):6}  {what}"
        yield from (f"          {name}" for name in cases[:3])
