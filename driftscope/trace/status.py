"""The status of one recording process, and the fault of a process that could not begin to record.

A process that records rewrites its status file: rows written and dropped, errors, and whether it
closed. A process that could not begin leaves a fault file there, if the directory can be written
and holds no other run; the other processes of the engine, `driftscope probe status` and the
commands that read runs find it. It is written even if Arrow cannot be imported, so this module does
without it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MaxLen

from driftscope.boundary.bounds import (
    MAX_STATUSES,
    Count,
    Counts,
    Digests,
    Notes,
    Ratio,
    SamplingInterval,
    Seconds,
    Share,
    Text,
    UnixTime,
    validated,
)
from driftscope.boundary.files import (
    PRIVATE_FILE,
    first_line,
    make_private_directory,
    read_json,
    write_file,
)
from driftscope.boundary.text import dumps
from driftscope.errors import DamagedTraceError

STATUS_S = 5.0
"""Shortest time between two rewrites while recording, in seconds, unless something failed or was
requested: each rewrite waits for the interpreter several times."""

DROP_CAUSES = (
    "queue_full",
    "ring_full",
    "disk_limit",
    "disk_error",
    "encode_error",
    "shadow_differs",
)
"""Keys of `Status.dropped`. Telemetry exports each from 0, so that the first loss is a rise."""


MAX_UPDATES = 4_096
"""Number of weight updates that a process notes one by one."""
TARGET, DRAFTER = "target", "drafter"
"""Models whose weights an update changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """An update of a model's weights while the engine serves."""

    time_s: UnixTime
    """Unix time at which the new weights were in place."""
    model: Text = TARGET
    """TARGET or DRAFTER."""
    version: Text | None = None
    """Name that the engine was given for the new weights. None: it was given none."""


WeightUpdates = Annotated[tuple[WeightUpdate, ...], MaxLen(MAX_UPDATES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status file, rewritten every STATUS_S at a flush, next to its source's record files."""

    source: Text
    """Process that wrote it: role, rank and pid, such as "worker0-4711"."""
    closed: bool
    """Whether the process closed its trace; False while recording, and for ever after a kill."""
    flushed_s: UnixTime
    """Unix time of the last flush."""
    rows: Counts = field(default_factory=dict)
    """Rows written, by record."""
    dropped: Counts = field(default_factory=dict)
    """Rows lost, by cause, see DROP_CAUSES."""
    errors: Counts = field(default_factory=dict)
    """Exceptions swallowed in the serving path, by hook."""
    first_error: Text | None = None
    probe_s: Seconds = 0.0
    """Time spent in hooks on the serving threads of this process."""
    writer_s: Seconds = 0.0
    """CPU time of the writer's thread for this source, in seconds; for most of it, the serving
    thread waits for the interpreter."""
    rate: Share | None = None
    """Share of draft steps that are currently recorded."""
    overhead: Ratio | None = None
    """Cost of the probe that a budget bounds, see `driftscope.metrics.latency`."""
    recording: bool | None = None
    """Whether draft steps are recorded at present; None for a process that has no draft steps."""
    control: Mapping[str, Any] = field(default_factory=dict)
    """Settings in force that can be changed at run time, as in
    `driftscope.trace.control`, and the `revision` of the control file that the process
    has applied."""

    reason: Text | None = None
    """Records that this process does not make, and why; None if nothing is missing."""
    weights: WeightUpdates = ()
    """Updates of the weights that this process saw, in order of time."""
    step_s: Seconds = 0.0
    """Wall time of the model steps of this process since its start; 0 in an engine core."""
    digests: Digests = field(default_factory=dict)
    """CRC-32 of each sealed file of this process, by file name, as 8 hex digits."""

    def to_json(self) -> str:
        """Return stable JSON: sorted keys."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["weights"] = [asdict(update) for update in self.weights]
        return dumps(values, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Control:
    """The entries of `Status.control` that are read."""

    revision: Count = 0
    every: SamplingInterval | None = None
    budget: Share | None = None
    labels: Notes = ()


def status_path(run: Path, source: str) -> Path:
    """Return the path of the status of `source`."""
    return run / f"status-{source}.json"


def read_statuses(run: Path) -> tuple[Status, ...]:
    """Return every status in the run directory, by source; raises DamagedTraceError."""
    # Use a set: a file that is replaced while the directory is listed may be listed twice.
    unique = {path for path in run.iterdir() if _is_status(path.name)} if run.is_dir() else set()
    paths = sorted(unique)
    if len(paths) > MAX_STATUSES:
        raise DamagedTraceError(
            f"{run}: {len(paths)} status files, but a run has one per process and at most "
            f"{MAX_STATUSES}; give each run a directory of its own"
        )
    return tuple(_read(path) for path in paths)


def _is_status(name: str) -> bool:
    return name.startswith("status-") and name.endswith(".json")


_AGAIN_S = 0.02
"""Time that overwriting a few kilobytes may take, in seconds."""


def _read(path: Path) -> Status:
    try:
        try:
            status = validated(Status, read_json(path))
        except ValueError:  # perhaps incomplete: on a full disk it is overwritten in place
            time.sleep(_AGAIN_S)
            status = validated(Status, read_json(path))
        validated(_Control, status.control)
        return status
    except (ValueError, OSError) as error:
        raise DamagedTraceError(
            f"{path}: not a readable status file ({first_line(error)})"
        ) from error


SETTING, DIRECTORY, PACKAGE, ENGINE, DRAFTER, TELEMETRY, OTHER = KINDS = (
    *("setting", "directory", "package", "engine", "drafter", "telemetry", "error"),
)
"""Kinds of fault: a closed set of words, which may be a metric's attribute."""
FAULT = "fault-"
"""Beginning of the names of faults."""
MAX_FAULTS = 64
"""Most faults that are read from one directory: one per process of the last start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFault:
    """Fault that kept a process from recording."""

    kind: Text
    """One of KINDS."""
    reason: Text
    """One line: what is wrong, where, and what to do."""
    source: Text = ""
    """Role and pid of the process, such as "worker0-4711"; empty if it is not known."""
    start: Text = ""
    """Identity of the engine's start, see DRIFTSCOPE_RUN_ID."""
    time_s: UnixTime = 0.0
    """Unix time of the fault."""


def leave_fault(run: Path, fault: StartFault) -> None:
    """Write `fault` into `run`, which is created if it is missing; raises OSError."""
    make_private_directory(run)
    content = dumps({**asdict(fault), "time_s": time.time()}, sort_keys=True)
    path = run / f"{FAULT}{fault.source}.json"
    write_file(path, f"{content}\n".encode(), mode=PRIVATE_FILE, durable=False)


def read_faults(run: Path) -> tuple[StartFault, ...]:
    """Return the faults in a directory, oldest first; files that cannot be read are left out."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(run.glob(f"{FAULT}*.json"))[:MAX_FAULTS]:
            with contextlib.suppress(OSError, ValueError):
                found.append(_checked(read_json(path, follow=False)))
    return tuple(sorted(found, key=lambda fault: fault.time_s))


def remove_faults(run: Path) -> None:
    """Remove the faults of earlier starts, because a run begins; failures are ignored."""
    with contextlib.suppress(OSError):
        for path in run.glob(f"{FAULT}*.json"):
            path.unlink(missing_ok=True)


def _checked(raw: object) -> StartFault:
    fault = validated(StartFault, raw)
    if fault.kind not in KINDS:
        raise ValueError("unknown kind")
    return fault
