"""The status of one recording process: rows written and dropped, errors, and whether it closed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from driftscope.boundary import strict_json
from driftscope.boundary.bounds import (
    MAX_STATUSES,
    Counts,
    Digests,
    Ratio,
    Seconds,
    Share,
    Text,
    UnixTime,
)
from driftscope.boundary.files import first_line, read_json
from driftscope.errors import DamagedTraceError
from driftscope.trace.format.record_validation import validated

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
HOOKS = (
    *("step_started", "draft_started", "draft_ended", "step_ended"),
    *("join", "masses", "prefilling", "shadow", "sinks"),
    *("extend_started", "extend_ended", "first_depth"),
    *("schedule", "verify_started", "request", "verify", "digest", "regions"),
    *("control", "encode", "telemetry", "write", "writer"),
)
"""Keys of `Status.errors`: the recorder's hooks, those of SGLang's first depth, the
scheduler's and the writer's."""


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
    """Exceptions swallowed in the serving path, by hook, see HOOKS."""
    first_error: Text | None = None
    probe_s: Seconds = 0.0
    """Time spent in hooks on the serving threads of this process."""
    writer_s: Seconds = 0.0
    """CPU time of the writer's thread for this source, in seconds; for most of it, the serving
    thread waits for the interpreter."""
    rate: Share | None = None
    """Share of draft steps that are currently recorded."""
    overhead: Ratio | None = None
    """Cost of the probe that a budget bounds, see `driftscope.metrics.overhead`."""
    recording: bool | None = None
    """Whether draft steps are recorded at present; None for a process that has no draft steps."""
    control: Mapping[str, Any] = field(default_factory=dict)
    """Settings in force that can be changed at run time, as in
    `driftscope.trace.format.control_file`, and the `revision` of the control file that the process
    has applied."""

    reason: Text | None = None
    """Records that this process does not make, and why; None if nothing is missing."""
    step_s: Seconds = 0.0
    """Wall time of the model steps of this process since its start; 0 in an engine core."""
    digests: Digests = field(default_factory=dict)
    """CRC-32 of each sealed file of this process, by file name, as 8 hex digits."""

    def to_json(self) -> str:
        """Return stable JSON: sorted keys."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return strict_json.dumps(values, sort_keys=True) + "\n"


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
            return validated(Status, read_json(path))
        except ValueError:  # perhaps incomplete: on a full disk it is overwritten in place
            time.sleep(_AGAIN_S)
            return validated(Status, read_json(path))
    except (ValueError, OSError) as error:
        raise DamagedTraceError(
            f"{path}: not a readable status file ({first_line(error)})"
        ) from error
