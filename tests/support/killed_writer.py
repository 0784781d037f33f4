"""A writer that is killed at its n-th call that changes a file, for every n: `killed_writer.py
FOLDER`.

One process imports everything and forks once for each n. A child writes a run to FOLDER/<n>-before
or FOLDER/<n>-after and kills itself there. The child of the last folder made no n-th call and ended
normally.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from support.runs import Spec, manifest, verify

from driftscope.trace import writer, writer_files
from driftscope.trace.records import VerifyRow
from driftscope.trace.writer import WriterOptions

SOURCE = "worker0-1"
ROWS_AT_ONCE, TURNS = 40, 5
SEGMENT_BYTES = 9000
"""Segment size in bytes, with which a segment is sealed every other turn."""
CHANGES = ("mkdir", "link", "writev", "fsync", "replace", "rename", "unlink", "ftruncate", "fchmod")
"""Functions of `os` that change files, in addition to `os.open` when it creates one."""
LONGEST_S = 20
MOMENTS = ("before", "after")


def handed_over() -> list[VerifyRow]:
    """Return every row that a child hands over, in order."""
    return [verify(0, i, float(i), i, 4, i % 5) for i in range(ROWS_AT_ONCE * TURNS)]


class Killer:
    """Counts calls that change a file, on any thread, and kills the process at a chosen one."""

    def __init__(self, number: int, moment: str) -> None:
        self._number, self._moment, self._count = number, moment, 0

    def wrap(self, module: Any, name: str, counts: Callable[..., bool] = lambda *_: True) -> None:
        """Count the calls of a module's function."""
        original = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if not counts(*arguments):
                return original(*arguments, **options)
            self._count += 1
            here = self._count == self._number
            if here and self._moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **options)
            if here:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(module, name, counted)


def write(run: Path) -> None:
    """Write a run as a probe does."""
    writer_files.SEGMENT_BYTES = SEGMENT_BYTES
    writer.STATUS_S = 0.0  # each flush rewrites the status
    writer_files.create_run(run, manifest(Spec()))
    open_writer, rows = (
        writer.TraceWriter(run, source=SOURCE, options=WriterOptions(flush_s=60.0)),
        handed_over(),
    )
    for first in range(0, len(rows), ROWS_AT_ONCE):
        turn = rows[first : first + ROWS_AT_ONCE]
        open_writer.put((lambda lists: [row for rows in lists for row in rows], turn))
        open_writer.flush_soon()
        while open_writer.status().rows.get("verify", 0) < first + ROWS_AT_ONCE:
            time.sleep(0.001)
    open_writer.close()


def child(run: Path, number: int, moment: str) -> None:
    """Write a run up to a chosen change of a file, or to its end."""
    signal.alarm(LONGEST_S)
    killer = Killer(number, moment)
    killer.wrap(os, "open", lambda _path, flags=0, *_: bool(flags & os.O_CREAT))
    for name in CHANGES:
        killer.wrap(os, name)
    killer.wrap(pq, "write_table")
    write(run)


def main(folder: Path) -> None:
    """Kill at each change until none is left."""
    for moment in MOMENTS:
        number, killed = 0, True
        while killed:
            number += 1
            pid = os.fork()
            if not pid:
                child(folder / f"{number:04d}-{moment}", number, moment)
                os._exit(0)
            status = os.waitpid(pid, 0)[1]
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if not killed and status:
                raise SystemExit(f"{number} {moment}: a child ended with {status:#x}")


if __name__ == "__main__":
    os.environ.pop("DRIFTSCOPE_TRACE", None)
    main(Path(sys.argv[1]))
