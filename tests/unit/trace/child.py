"""Processes that write a trace and end in some way: `child.py MODE RUN`."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path

from support.runs import Spec, rows, verify

from driftscope.trace import writer as trace_writer
from driftscope.trace import writer_files
from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter, WriterOptions

ROWS = 50
SEALING_S = 4.0


def endless(run: Path) -> None:
    """Hand over numbered rows of every record until killed."""
    writer, content, step = TraceWriter(run, source="child"), rows(Spec(requests=100_000)), 0
    while True:
        step += 1
        _put(writer, step)
        writer.put(next(content))
        time.sleep(0.001)


def exits(run: Path) -> None:
    """End as a script does, without closing the writer."""
    _some(TraceWriter(run, source="child"))


def raises(run: Path) -> None:
    """End with an exception that nobody catches."""
    _some(TraceWriter(run, source="child"))
    raise SystemExit(3)


def forks(run: Path) -> None:
    """Leave the writing to a child of multiprocessing, which ends without atexit functions."""
    process = multiprocessing.get_context("spawn").Process(target=_probed, args=(run,))
    process.start()
    process.join()


def full(run: Path) -> None:
    """Write on a disk that takes nothing after a while, and then again."""
    writer = TraceWriter(run, source="child", options=WriterOptions(flush_s=0.005))
    _write(writer, run, step=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    for step in range(100, 110):
        _put(writer, step)
    time.sleep(0.2)  # the status file cannot be written either, so nothing tells
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _write(writer, run, step=1000)
    writer.close()


def seals(run: Path) -> None:
    """Hand over numbered rows for SEALING_S seconds, with a new segment and status all the time."""
    writer_files.SEGMENT_BYTES, trace_writer.STATUS_S = 4000, 0.0
    writer, step = TraceWriter(run, source="child", options=WriterOptions(flush_s=0.002)), 0
    end_s = time.monotonic() + SEALING_S
    while time.monotonic() < end_s:
        step += _put(writer, step)
        time.sleep(0.0005)
    writer.close()


def _put(writer: TraceWriter, step: int) -> bool:
    return writer.put(verify(0, step, time.time(), step, 4, 1))


def _some(writer: TraceWriter) -> None:
    for step in range(ROWS):
        _put(writer, step)


def _probed(run: Path) -> None:
    from driftscope_probes.process_writer import open_writer
    from driftscope_probes.settings import settings_from

    settings = settings_from({"DRIFTSCOPE_TRACE": str(run)})
    assert settings is not None
    _some(open_writer(settings, "worker0"))


def _write(writer: TraceWriter, run: Path, *, step: int) -> None:
    """Hand over a row and wait until it is on disk."""
    before = _written(run)
    _put(writer, step)
    while _written(run) == before:
        time.sleep(0.005)


def _written(run: Path) -> int:
    return sum(status.rows.get("verify", 0) for status in read_statuses(run))


if __name__ == "__main__":
    os.environ.pop("DRIFTSCOPE_TRACE", None)
    {mode.__name__: mode for mode in (endless, exits, raises, forks, full, seals)}[sys.argv[1]](
        Path(sys.argv[2])
    )
