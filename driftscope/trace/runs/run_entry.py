"""The facts of one run that a list of runs shows, read without an analysis."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from driftscope.errors import TraceError
from driftscope.trace.format.manifest import ABLATION, CLIENT, MANIFEST, Manifest, read_manifest
from driftscope.trace.format.record_stream import read_stream
from driftscope.trace.format.segment import SEALED, segments
from driftscope.trace.format.start_fault import read_faults
from driftscope.trace.format.status import Status, read_statuses
from driftscope.trace.read.parquet_input import open_parquet
from driftscope.trace.runs.process_life import alive
from driftscope.vocabulary import RunState

FRESH_S = 60.0
"""Age in seconds of a status file below which its process counts as alive wherever it runs: a
process that records rewrites it every few seconds."""
_DRAFTED = "drafted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One line of `driftscope ls`."""

    path: Path
    created_s: float
    """Unix time at which the run began."""
    state: str
    """One of RunState."""
    octets: int
    """Size of its files in bytes."""
    manifest: Manifest | None = None
    """None: it has none, or it cannot be read."""
    rounds: int | None = None
    """Rounds (drafts that were verified) of a probe's run; None: unknown, or a replay."""
    requests: int | None = None
    """Requests of a replay, sent or not; None for a probe's run, and for sums."""
    problem: str = ""
    """Reason why there is no run, or why it cannot be read; "": there is one."""

    @property
    def is_replay(self) -> bool:
        """Whether a sender of prompts recorded it."""
        return self.manifest is not None and self.manifest.engine == CLIENT

    @property
    def is_ablation(self) -> bool:
        """Whether `driftscope ablate` wrote it, which leaves no rounds."""
        return self.manifest is not None and self.manifest.mode == ABLATION


def entry_of(run: Path) -> RunEntry:
    """Return the facts of `run`; a run that cannot be read has a `problem`. Raises nothing."""
    octets, changed_s = _size(run)
    try:
        statuses = read_statuses(run)
        manifest = read_manifest(run) if (run / MANIFEST).exists() else None
    except (TraceError, OSError) as error:
        return RunEntry(
            path=run,
            created_s=changed_s,
            state=RunState.UNREADABLE,
            octets=octets,
            problem=str(error),
        )
    if manifest is not None and manifest.mode == ABLATION:
        return _ablation(run, manifest, octets)
    replayed = manifest is not None and manifest.engine == CLIENT
    faults = () if manifest else read_faults(run)
    rounds = None if manifest is None or replayed else _rounds_of(run)
    return RunEntry(
        path=run,
        created_s=changed_s if manifest is None else manifest.created_s,
        state=_state(run, manifest, statuses, rounds),
        octets=octets,
        manifest=manifest,
        rounds=rounds,
        problem=faults[0].reason if faults else "",
        requests=_requests_of(manifest, statuses) if manifest and replayed else None,
    )


def _ablation(run: Path, manifest: Manifest, octets: int) -> RunEntry:
    """Return the facts of an ablation, which is whole as soon as it has a manifest."""
    return RunEntry(
        path=run,
        created_s=manifest.created_s,
        state=RunState.CLOSED,
        octets=octets,
        manifest=manifest,
    )


def is_live(run: Path, statuses: Sequence[Status]) -> bool:
    """Return whether a process may still write to `run`.

    A process that has not closed its status is alive if this machine has it, or if it wrote less
    than FRESH_S ago. A run without a status file is alive while its manifest is that young.
    """
    now = time.time()
    if not statuses:
        return now - _modified_s(run / MANIFEST) < FRESH_S
    return any(
        not status.closed and (alive(status.source, status.flushed_s) or _fresh(run, status, now))
        for status in statuses
    )


def _fresh(run: Path, status: Status, now: float) -> bool:
    written_s = max(status.flushed_s, _modified_s(run / f"status-{status.source}.json"))
    return now - written_s < FRESH_S


def _state(
    run: Path, manifest: Manifest | None, statuses: Sequence[Status], rounds: int | None
) -> str:
    if is_live(run, statuses):
        return RunState.RECORDING if manifest else RunState.STARTING
    if manifest is None:
        return RunState.NO_DRAFTER
    if not statuses or not all(status.closed for status in statuses):
        return RunState.NOT_CLOSED
    return RunState.EMPTY if rounds == 0 else RunState.CLOSED


def _requests_of(manifest: Manifest, statuses: Sequence[Status]) -> int | None:
    """Return the requests of a replay; None for sums of another tool's file."""
    sent = sum(each.rows.get("client", 0) for each in statuses)
    return None if not sent and "ingested" in manifest.workload else sent


def _rounds_of(run: Path) -> int | None:
    try:
        return sum(_rounds(path) for path in segments(run, "verify"))
    except (OSError, ValueError, RuntimeError, KeyError):
        return None


def _rounds(path: Path) -> int:
    """Return the rows of one segment in which something was drafted."""
    if path.suffix == SEALED:
        with open_parquet(path) as file:
            column = file.read(columns=[_DRAFTED]).column(_DRAFTED)
    else:
        table = read_stream(path).table
        column = table.column(_DRAFTED) if table.num_columns else pa.chunked_array([], pa.int16())
    return pc.sum(pc.greater(column, 0)).as_py() or 0


def _size(run: Path) -> tuple[int, float]:
    """Return the bytes of the run's files and the time of its last change."""
    octets, changed_s = 0, 0.0
    try:
        with os.scandir(run) as entries:
            for each in entries:
                known = each.stat(follow_symlinks=False)
                octets += known.st_size
                changed_s = max(changed_s, known.st_mtime)
    except OSError:
        pass
    return octets, changed_s


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
