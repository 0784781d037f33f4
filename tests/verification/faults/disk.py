"""Test a writer whose disk is full at random moments.

No privilege is needed: calls that need space fail as on a full disk, all others work normally.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

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

MOST_CALLS = 70
"""Approximate number of the writer's calls that change a file."""
ROWS = handed_over()
EXPECTED = to_batch("verify", ROWS).to_pylist()


def write_on_a_full_disk(random: Random, _: Path, folder: Path) -> None:
    """Rows that do not fit on the disk are counted; the others are read as they were handed
    over. A writer that has no space to begin with reports a clear error."""
    first = random.randrange(MOST_CALLS)
    full = range(first, first + random.choice((1, 3, 10, 10_000)))
    run, turn, segment_bytes = (
        *(folder / "run", random.choice((7, 40))),
        random.choice((3000, 9000, 1 << 20)),
    )
    logging.disable()
    try:
        _write(run, turn, segment_bytes, full)
    except TraceError:
        return
    if not (run / MANIFEST).exists():
        return
    (status,), trace = read_statuses(run), read_trace(run)
    written, lost = status.rows.get("verify", 0), sum(status.dropped.values())
    assert status.closed, "its status does not say that it ended"
    assert trace.verify.num_rows == written, f"{trace.verify.num_rows} rows of {written}"
    assert written + lost == len(ROWS), f"{written} written, {lost} lost"
    assert trace.manifest.lost in ({}, status.dropped), "the manifest counts others"
    assert bool(lost) == any("dropped" in problem for problem in trace.problems)
    found = trace.verify.to_pylist()
    steps = [row["step"] for row in found]
    assert steps == sorted(set(steps)), "rows out of order or twice"
    assert found == [EXPECTED[step] for step in steps], "other rows than were handed over"


def _write(run: Path, turn: int, segment_bytes: int, full: range) -> None:
    """Write all rows, `turn` at a time; of the calls that need space, those in `full` fail."""
    calls = itertools.count(1)

    def limited(module: Any, name: str, needs_space: Callable[..., bool]) -> Any:
        original = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if needs_space(*arguments) and next(calls) in full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        return mock.patch.object(module, name, call)

    with contextlib.ExitStack() as patches:
        for patch in (
            limited(os, "open", lambda _path, flags=0, *_: bool(flags & os.O_CREAT)),
            limited(os, "writev", _grows),
            limited(pq, "write_table", lambda *_: True),
            limited(os, "link", lambda *_: True),
            mock.patch.object(writer_files, "SEGMENT_BYTES", segment_bytes),
            mock.patch.object(writer, "STATUS_S", 0.0),  # each flush rewrites the status
        ):
            patches.enter_context(patch)
        writer_files.create_run(run, manifest(Spec()))
        made = writer.TraceWriter(run, source="worker0-1", options=WriterOptions(flush_s=60.0))
        for begin in range(0, len(ROWS), turn):
            rows = ROWS[begin : begin + turn]
            made.put((lambda lists: [row for rows in lists for row in rows], rows))
            made.flush_soon()
            while _handled(made) < begin + len(rows):
                time.sleep(0.0005)
        made.close()


def _handled(made: writer.TraceWriter) -> int:
    status = made.status()
    return status.rows.get("verify", 0) + sum(status.dropped.values())


def _grows(descriptor: int, parts: Any) -> bool:
    """Return whether a write needs space that the file does not have yet."""
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    return at + sum(len(part) for part in parts) > os.fstat(descriptor).st_size
