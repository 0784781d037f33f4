"""Test thousands of damaged runs: `make faults`, or `FAULTS_MINUTES=60 make faults` for longer.

Each case runs in a process that may crash, hang or grow without harm, forked from one that has
imported everything.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.odd_runs import ODD, RECORDED, ROOT

from driftscope.trace.segments import digest_of
from verification.faults.cases import Case, case_of, figures_of, run_case

LIMIT_S = 10
"""CPU time after which a case counts as hanging, in seconds."""
WAITING = 6
"""Multiple of it after which a case counts as hanging on the clock: other processes take their
share of the machine."""
MEMORY_BYTES = 1 << 30
"""Most memory that a case may add to its process, in bytes."""
TOLD = "told"
"""File in a case's folder with what went wrong."""


@dataclass(slots=True, kw_only=True)
class Found:
    """Results of the cases so far."""

    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of cases by mutation and command."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Names of failed cases by failure."""
    sound: int = 0
    """Number of sound runs of which copies were damaged."""


def sound_runs(folder: Path) -> list[Path]:
    """Write to `folder` the recorded runs and those unusual runs of the tests that can be read,
    each with the digests of its sealed files as this version writes them."""
    runs = [
        Path(shutil.copytree(ROOT / name, folder / name.replace("/", "-"))) for name in RECORDED
    ]
    runs += [write(folder / name.replace(" ", "-")) for name, write in sorted(ODD.items())]
    for path in (path for run in runs for path in run.glob("status-*.json")):
        status = json.loads(path.read_text())
        mine = path.parent.glob(f"*-{status['source']}-*.parquet")
        status["digests"] = {path.name: digest_of(path) for path in mine}
        path.write_text(json.dumps(status))
    return runs


def _figures_of_readable(runs: list[Path]) -> Iterator[tuple[Path, Any]]:
    for run in runs:
        with contextlib.suppress(Exception):  # an unusual run that cannot be read
            yield run, figures_of(run)


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
"""Modules that commands import when they run; each forked process would import them itself."""


def campaign(
    seconds: float,
    processes: int,
    first: int = 0,
    limit_s: int = LIMIT_S,
    most: int = sys.maxsize,
) -> Found:
    """Work through `most` cases from number `first` on, or those of `seconds`; a case that takes
    longer than `limit_s` counts as hanging."""
    deadline = time.monotonic() + seconds
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="driftscope-faults-") as name:
        folder = Path(name)
        known = dict(_figures_of_readable(sound_runs(folder / "sound")))
        found, running = Found(sound=len(known)), dict[int, tuple[Case, Path]]()
        number = first
        gc.freeze()  # a collection in a forked process would copy what it walks
        while True:
            while len(running) < processes and number < first + most:
                if time.monotonic() > deadline:
                    break
                case, place = case_of(number, list(known)), folder / str(number)
                running[_begin(case, place, known, limit_s)] = case, place
                number += 1
            if not running:
                return found
            for pid in list(running):
                ended, status, usage = os.wait4(pid, os.WNOHANG)
                if ended:
                    case, place = running.pop(pid)
                    found.cases[case.mutation, case.command] += 1
                    if what := _failure(os.waitstatus_to_exitcode(status), usage, place, limit_s):
                        found.failures.setdefault(what, []).append(case.name)
                    shutil.rmtree(place)
            time.sleep(0.002)


def _begin(case: Case, place: Path, known: dict[Path, Any], limit_s: int) -> int:
    """Run a case in a forked process and return its pid."""
    place.mkdir()
    if pid := os.fork():
        return pid
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        signal.alarm(WAITING * limit_s)
        (place / "case").mkdir()
        os.chdir(place / "case")
        run_case(case, place / "case", known)
    except BaseException as error:  # any error is what the campaign is looking for
        (place / TOLD).write_text(_signature(error))
    finally:
        os._exit(0)


def _failure(code: int, usage: resource.struct_rusage, place: Path, limit_s: int) -> str:
    if -code in (signal.SIGXCPU, signal.SIGALRM):
        return f"took more than {limit_s} s"
    if code:
        return f"ended with {code}"
    if (place / TOLD).exists():
        return (place / TOLD).read_text()
    grown = usage.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"took more than {MEMORY_BYTES >> 20} MiB" if grown << 10 > MEMORY_BYTES else ""


def _signature(error: BaseException) -> str:
    """Return the error and the place in driftscope that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "driftscope" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:160]!a}"


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


def main() -> int:
    """Run the campaign; return 0 if nothing failed, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    minutes = float(os.environ.get("FAULTS_MINUTES", "5"))
    parser.add_argument("--seconds", type=float, default=60 * minutes)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    random_first = int.from_bytes(os.urandom(4), "big") * 1000
    parser.add_argument("--first", type=int, default=random_first, help="number of the first case")
    wanted = parser.parse_args()
    print(f"from case {wanted.first} on")
    found = campaign(wanted.seconds, wanted.processes, wanted.first)
    print("\n".join(table(found)))
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
