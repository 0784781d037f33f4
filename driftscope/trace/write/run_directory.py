"""Begins a run directory: creates it, writes its manifest, and refuses a directory in use."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from driftscope.boundary import strict_json
from driftscope.boundary.bounds import MAX_ROWS_COUNTED
from driftscope.boundary.files import (
    PRIVATE_FILE,
    create_whole,
    locked,
    make_private_directory,
    read_json,
    remove_leftovers,
    write_file,
)
from driftscope.errors import DamagedTraceError, TraceError
from driftscope.trace.format.manifest import MANIFEST, Manifest, read_manifest
from driftscope.trace.format.start_fault import remove_faults
from driftscope.trace.format.status import read_statuses, status_path

TRIAL_BYTES = 1 << 16
"""Size of the file that tests whether a run could be written: more than a start writes."""
MANIFEST_S = 2.0
"""Longest time, in seconds, that writing a manifest may take once its file exists, on a file system
without hard links."""


def check_unused(run: Path, run_id: str | None = None) -> None:
    """Raise TraceError if `run` holds a run, other than `run_id` while it is in progress.

    Engines that one process starts one after the other have the same id.
    """
    if not (run / MANIFEST).exists():
        return
    over = any(status.closed for status in read_statuses(run))
    if over or run_id is None or _run_id(run) != run_id:
        raise TraceError(
            f"{run}: already holds a run; give DRIFTSCOPE_TRACE a new directory "
            "(a {time} in it is replaced by the start time)"
        )


def has_begun(run: Path, run_id: str) -> bool:
    """Return whether `run` holds the run `run_id`, still in progress."""
    try:
        check_unused(run, run_id)
    except TraceError:
        return False
    return (run / MANIFEST).exists()


def check_writable(run: Path) -> None:
    """Raise TraceError if a new run cannot be written to `run`. Nothing is left behind: the test
    file is made in the nearest folder that exists."""
    check_unused(run)
    folder = next((each for each in (run, *run.parents) if each.exists()), run)
    try:
        if folder == run:
            _check_owner(run)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b" " * TRIAL_BYTES)
            file.flush()
    except OSError as error:
        raise TraceError(_unwritable(run, error)) from error


def rewrite_manifest(run: Path, manifest: Manifest) -> None:
    """Replace the manifest of `run` as a whole, by rename; raises OSError."""
    write_file(run / MANIFEST, manifest.to_json().encode(), mode=PRIVATE_FILE)


def note_lost(run: Path) -> None:
    """Write to the manifest of `run` how many rows the processes that have ended lost, by cause.

    If several processes end at once, the last counts all of them. A run that lost nothing keeps its
    manifest unchanged. Raises OSError, DamagedTraceError and ValueError, with the manifest
    unchanged.
    """
    with locked(run):
        lost: Counter[str] = Counter()
        for status in read_statuses(run):
            if status.closed:
                lost.update(status.dropped)
        content = read_json(run / MANIFEST)
        counts = {cause: min(rows, MAX_ROWS_COUNTED) for cause, rows in lost.items()}
        if content.get("lost", {}) != counts:
            text = strict_json.dumps({**content, "lost": counts}, indent=1, sort_keys=True)
            write_file(run / MANIFEST, f"{text}\n".encode(), mode=PRIVATE_FILE)


def _run_id(run: Path) -> str:
    """Return the id in a manifest that another process may be writing at the moment."""
    deadline = time.monotonic() + MANIFEST_S
    while True:
        try:
            return read_manifest(run).run_id
        except DamagedTraceError:
            if time.monotonic() > deadline:
                return ""
            time.sleep(MANIFEST_S / 100)


def create_run(run: Path, manifest: Manifest, *, join: bool = False) -> None:
    """Create `run` and write its manifest; raises TraceError if it already holds a run.

    `join`: a run with the same id is this run, begun by another of its processes.
    """
    try:
        make_private_directory(run)
        _check_owner(run)
        remove_leftovers(run)
        create_whole(run / MANIFEST, manifest.to_json().encode())
        _remove_remains(run)
    except OSError as error:
        if isinstance(error, FileExistsError) and (run / MANIFEST).exists():
            check_unused(run, manifest.run_id if join else None)
            return
        raise TraceError(_unwritable(run, error)) from error


def _remove_remains(run: Path) -> None:
    """Remove what an earlier start left that ended before it began a run; failures are ignored."""
    remove_faults(run)
    with contextlib.suppress(OSError, TraceError):
        for status in read_statuses(run):
            if status.closed:
                status_path(run, status.source).unlink(missing_ok=True)


def _unwritable(run: Path, error: OSError) -> str:
    return (
        f"{run}: cannot write a trace there ({error.strerror or error}); "
        "point DRIFTSCOPE_TRACE at a writable directory"
    )


def _check_owner(run: Path) -> None:
    """Raise TraceError for a directory of another user, who could replace what is written there.

    The superuser may write to any directory.
    """
    me, owner = os.geteuid(), run.stat().st_uid
    if me not in (0, owner):
        raise TraceError(
            f"{run}: belongs to another user (uid {owner}, this process has {me}); "
            "point DRIFTSCOPE_TRACE at a directory of its own"
        )
