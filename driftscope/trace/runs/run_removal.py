"""Removes run directories: real ones only, never through a link, never one that is in use."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from driftscope.boundary.files import PARTIAL
from driftscope.errors import DamagedTraceError, NotATraceError, TraceError
from driftscope.trace.format.control_file import CONTROL
from driftscope.trace.format.manifest import MANIFEST
from driftscope.trace.format.records import RECORDS
from driftscope.trace.format.status import read_statuses
from driftscope.trace.runs.run_entry import RunEntry, is_live
from driftscope.trace.runs.run_search import is_status
from driftscope.vocabulary import RunState

_OURS = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(CONTROL)}|(?:status|fault)-[^/]*\.json"
    rf"|(?:{'|'.join(RECORDS)})-[^/]+-\d+\.(?:arrows|parquet)|\.[^/]+{re.escape(PARTIAL)}"
)
"""Names of the files that a recorder writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Which runs to remove; a run is removed if it is beyond one of the bounds."""

    older_s: float | None = None
    """Age in seconds, counted from the beginning of a run, beyond which it is removed."""
    total_octets: int | None = None
    """Size in bytes that all runs together may keep; the oldest are removed first."""
    keep: int = 0
    """Number of newest runs that are never removed."""


def beyond(entries: Sequence[RunEntry], bounds: Bounds, now_s: float) -> tuple[RunEntry, ...]:
    """Return those of `entries`, newest first, that are beyond the bounds.

    A run that is being written, that was not closed or that cannot be read is never among them, but
    its size counts.
    """
    chosen, kept_octets = [], 0
    for at, entry in enumerate(entries):
        old = bounds.older_s is not None and now_s - entry.created_s > bounds.older_s
        total = bounds.total_octets
        large = total is not None and kept_octets + entry.octets > total
        if at >= bounds.keep and entry.state in RunState.REMOVABLE and (old or large):
            chosen.append(entry)
        else:
            kept_octets += entry.octets
    return tuple(chosen)


def check_removable(run: Path, *, unclosed: bool = False) -> None:
    """Raise TraceError if `run` is not a run directory that may be removed.

    `unclosed`: also allow a run that no process closed, such as that of a killed server.
    """
    if run.is_symlink():
        raise NotATraceError(f"{run}: is a symbolic link, which is not followed; give the run")
    if not run.is_dir():
        raise NotATraceError(f"{run}: no such run directory")
    names = {each.name for each in run.iterdir()}
    if MANIFEST not in names and not any(map(is_status, names)):
        raise NotATraceError(f"{run}: has no {MANIFEST}, so it is not a driftscope run")
    foreign = sorted(name for name in names if not _is_ours(run / name))
    if foreign:
        raise NotATraceError(
            f"{run}: holds {foreign[0]!r}, which a recorder does not write; move it away first"
        )
    _check_over(run, unclosed=unclosed)


def remove(run: Path, *, unclosed: bool = False) -> None:
    """Remove a run directory with its files, after `check_removable`.

    The directory is opened without following a link, and files are removed inside what was opened,
    the manifest last. Raises TraceError and OSError.
    """
    check_removable(run, unclosed=unclosed)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(run, flags)
    try:
        with os.scandir(descriptor) as entries:
            names = sorted((each.name for each in entries), key=lambda name: name == MANIFEST)
        for name in names:
            if not _OURS.fullmatch(name):
                raise TraceError(f"{run}: {name!r} was added meanwhile; it is only removed in part")
            os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    run.rmdir()


def _is_ours(path: Path) -> bool:
    return bool(_OURS.fullmatch(path.name)) and stat.S_ISREG(path.lstat().st_mode)


def _check_over(run: Path, *, unclosed: bool) -> None:
    """Raise TraceError for a run in use, and for one that was not closed unless it is allowed."""
    try:
        statuses = read_statuses(run)
    except DamagedTraceError as error:
        raise TraceError(f"{error}; remove the directory by hand if you are sure") from error
    if is_live(run, statuses):
        raise TraceError(f"{run}: is still being recorded; stop the server first")
    # A directory with nothing but the fault of a start never became a run.
    begun = bool(statuses) or (run / MANIFEST).exists()
    closed = bool(statuses) and all(status.closed for status in statuses)
    if begun and not closed and not unclosed:
        raise TraceError(
            f"{run}: was not closed; its server may have been killed, or may be idle on another "
            "machine: give --unclosed if you are sure that it has ended"
        )
