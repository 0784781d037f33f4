"""Test a writer whose disk is full at random moments.

No privilege is needed: calls that need space fail as on a full disk, all others work normally.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
from support.killed_writer import handed_over
from support.runs import Spec, manifest

from driftscope.errors import TraceError
from driftscope.trace import writer, writer_files
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import read_trace
from driftscope.trace.schema import to_batch
from driftscope.trace.status import read_statuses
from driftscope.trace.writer import WriterOptions

SOURCE = "worker0-1"
MOST_CALLS = 70
"""Approximate number of the writer's calls that change a file."""
CHILD_S, WAITING = 8, 6
"""CPU time that a writer may take, in seconds, and the multiple of it on the clock."""
REFUSED = 3
"""Exit code of a writer that had no space to begin with, which it reports with a clear error."""
ROWS = handed_over()
EXPECTED = to_batch("verify", ROWS).to_pylist()


def write_on_a_full_disk(random: Random, _: Path, folder: Path) -> None:
    """Rows that do not fit on the disk are counted; the others are read as they were handed
    over."""
    first = random.randrange(MOST_CALLS)
    last = first + random.choice((1, 3, 10, 10_000))
    run, turn, segment = (
        folder / "run",
        random.choice((7, 40)),
        random.choice((3000, 9000, 1 << 20)),
    )
    code = _in_child(lambda: _write_full(run, turn, segment, first, last))
    assert code in (0, REFUSED), f"the writer ended with {code:#x}"
    if code == REFUSED or not (run / MANIFEST).exists():
        return
    (status,), trace = read_statuses(run), read_trace(run)
    written = status.rows.get("verify", 0)
    assert status.closed, "its status does not say that it ended"
    assert trace.verify.num_rows == written, f"{trace.verify.num_rows} rows of {written}"
    lost = sum(status.dropped.values())
    assert written + lost == len(ROWS), f"{written} written, {lost} lost"
    assert trace.manifest.lost in ({}, status.dropped), "the manifest counts others"
    assert bool(lost) == any("dropped" in problem for problem in trace.problems)
    _check_rows(trace.verify.to_pylist())


def _check_rows(found: list[Any]) -> None:
    steps = [row["step"] for row in found]
    assert steps == sorted(set(steps)), "rows out of order or twice"
    assert found == [EXPECTED[step] for step in steps], "other rows than were handed over"


def _in_child(work: Callable[[], None]) -> int:
    """Return the exit status of a forked process."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CHILD_S, CHILD_S))
            signal.alarm(WAITING * CHILD_S)
            logging.disable()
            work()
            code = 0
        except TraceError:
            code = REFUSED
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else status


def _write_full(run: Path, turn: int, segment: int, first: int, last: int) -> None:
    disk = _FullDisk(first, last)
    disk.wrap(os, "open", lambda _path, flags=0, *_: bool(flags & os.O_CREAT))
    disk.wrap(os, "writev", _grows)
    disk.wrap(pq, "write_table", lambda *_: True)
    disk.wrap(os, "link", lambda *_: True)
    writer_files.SEGMENT_BYTES = segment
    vars(writer)["STATUS_S"] = 0.0  # each flush rewrites the status
    writer_files.create_run(run, manifest(Spec()))
    made = writer.TraceWriter(run, source=SOURCE, options=WriterOptions(flush_s=60.0))
    for begin in range(0, len(ROWS), turn):
        end = min(begin + turn, len(ROWS))
        made.put((lambda lists: [row for rows in lists for row in rows], ROWS[begin:end]))
        made.flush_soon()
        while _handled(made) < end:
            time.sleep(0.0005)
    made.close()


def _handled(made: writer.TraceWriter) -> int:
    status = made.status()
    return status.rows.get("verify", 0) + sum(status.dropped.values())


def _grows(descriptor: int, parts: Any) -> bool:
    """Return whether a write needs space that the file does not have yet."""
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    return at + sum(len(part) for part in parts) > os.fstat(descriptor).st_size


class _FullDisk:
    """Makes a range of the calls that need space fail."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last, self._count = first, last, 0

    def wrap(self, module: Any, name: str, takes_room: Callable[..., bool]) -> None:
        """Make calls of a module's function that need space fail when they are in the range."""
        original = getattr(module, name)

        def limited(*arguments: Any, **options: Any) -> Any:
            if takes_room(*arguments):
                self._count += 1
                if self._first <= self._count < self._last:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        setattr(module, name, limited)
