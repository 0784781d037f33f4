"""A process of an engine that records nothing, and why: a small file in the run directory.

The process that could not begin leaves it there if the directory can be written and holds no other
run. The other processes of the engine, `driftscope probe status` and the commands that read runs
find it. It is written even if Arrow cannot be imported, so this module imports only the standard
library and the border of input and output.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from driftscope.boundary import strict_json
from driftscope.boundary.bounds import MAX_LABEL_CHARS, MAX_TEXT_CHARS
from driftscope.boundary.files import PRIVATE_FILE, make_private_directory, read_json, write_file

SETTING, DIRECTORY, PACKAGE, ENGINE, DRAFTER, TELEMETRY, OTHER = KINDS = (
    *("setting", "directory", "package", "engine", "drafter", "telemetry", "error"),
)
"""Kinds of fault: a closed set of words, which may be a metric's attribute."""
_PREFIX = "fault-"
MAX_FAULTS = 64
"""Most faults that are read from one directory: one per process of the last start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFault:
    """Fault that kept a process from recording."""

    kind: str
    """One of KINDS."""
    reason: str
    """One line: what is wrong, where, and what to do."""
    source: str = ""
    """Role and pid of the process, such as "worker0-4711"; empty if it is not known."""
    start: str = ""
    """Identity of the engine's start, see DRIFTSCOPE_RUN_ID."""
    time_s: float = 0.0
    """Unix time of the fault."""


def leave_fault(run: Path, fault: StartFault) -> None:
    """Write `fault` into `run`, which is created if it is missing; raises OSError."""
    make_private_directory(run)
    content = strict_json.dumps({**asdict(fault), "time_s": time.time()}, sort_keys=True)
    path = run / f"{_PREFIX}{fault.source}.json"
    write_file(path, f"{content}\n".encode(), mode=PRIVATE_FILE, durable=False)


def read_faults(run: Path) -> tuple[StartFault, ...]:
    """Return the faults in a directory, oldest first; files that cannot be read are left out."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(run.glob(f"{_PREFIX}*.json"))[:MAX_FAULTS]:
            with contextlib.suppress(OSError, ValueError):
                found.append(_checked(read_json(path, follow=False)))
    return tuple(sorted(found, key=lambda fault: fault.time_s))


def remove_faults(run: Path) -> None:
    """Remove the faults of earlier starts, because a run begins; failures are ignored."""
    with contextlib.suppress(OSError):
        for path in run.glob(f"{_PREFIX}*.json"):
            path.unlink(missing_ok=True)


def _checked(raw: object) -> StartFault:
    if not isinstance(raw, dict):
        raise ValueError("no object")
    given = {each.name: raw.get(each.name, each.default) for each in fields(StartFault)}
    texts = [given[name] for name in ("kind", "reason", "source", "start")]
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT_CHARS for text in texts):
        raise ValueError("a field that is no text")
    if given["kind"] not in KINDS or len(given["source"]) > MAX_LABEL_CHARS:
        raise ValueError("unknown kind")
    if type(given["time_s"]) not in (int, float):
        raise ValueError("no time")
    return StartFault(**given)
