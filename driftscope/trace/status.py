"""How one recording process fares: what it wrote, dropped and failed at, and whether it closed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from driftscope.errors import DamagedTraceError

STATUS_S = 5.0
"""Least time between two rewrites while recording, unless something failed or was asked for: each
waits for the interpreter several times."""


_STABLE = json.JSONEncoder(sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Rewritten every STATUS_S at a flush, beside the record files of its `source`."""

    source: str
    """Process that wrote it: role, rank and pid, such as "worker0-4711"."""
    closed: bool
    """False while recording, and for ever after a kill."""
    flushed_s: float
    """Unix time of the last flush."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows written, by record."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows lost, by cause: "queue_full", "disk_limit", "disk_error", "encode_error"."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Exceptions swallowed in the serving path, by hook."""
    first_error: str | None = None
    probe_s: float = 0.0
    """Time spent in hooks on the serving threads of this process."""
    writer_s: float = 0.0
    """Of a core, that the writer's thread has taken for this source: most of it, the serving thread
    waits for the interpreter."""
    rate: float | None = None
    """Share of draft steps that are recorded at present."""
    overhead: float | None = None
    """The probe's share of the step time of late, a moving mean."""
    recording: bool | None = None
    """Whether draft steps are recorded at present; None from a process that has none."""
    control: Mapping[str, Any] = field(default_factory=dict)
    """Settings in force that can be changed while it records, as in `driftscope.trace.control`, and
    the `revision` of the control file that it has taken up."""

    def to_json(self) -> str:
        """Stable JSON: sorted keys."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _STABLE.encode(values) + "\n"


def status_path(run: Path, source: str) -> Path:
    """Where the status of `source` lies."""
    return run / f"status-{source}.json"


def read_statuses(run: Path) -> tuple[Status, ...]:
    """Every status in the run directory, by source; raises DamagedTraceError."""
    return tuple(_read(path) for path in sorted(run.glob("status-*.json")))


def _read(path: Path) -> Status:
    known = {f.name for f in fields(Status)}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Status(**{k: v for k, v in raw.items() if k in known})
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise DamagedTraceError(f"{path}: not a readable status file ({error})") from error
