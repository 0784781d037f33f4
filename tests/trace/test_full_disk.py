"""What is lost is reported, also where the disk stays full: in the status, the log, by readers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.runs import Spec, manifest, verify
from support.small_disk import fill, small_disk

from driftscope.trace.format.status import read_statuses
from driftscope.trace.read.reader import read_trace
from driftscope.trace.write.run_directory import create_run
from driftscope.trace.write.writer import TraceWriter

ROWS = 40_000
Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 300) as folder:
        yield folder


def hand_over(writer: TraceWriter, rows: int = ROWS) -> None:
    for i in range(rows):
        while not writer.put(verify(0, i, float(i), i, 4, 1)):
            writer.hurry()


def test_a_disk_that_stays_full(disk: Path, until: Until, caplog: pytest.LogCaptureFixture) -> None:
    run = disk / "run"
    create_run(run, manifest(Spec()))
    writer = TraceWriter(run, source="worker0-1", flush_s=0.005)
    fill(disk)
    with caplog.at_level(logging.WARNING, "driftscope"):
        hand_over(writer)
        until(lambda: read_statuses(run)[0].dropped.get("disk_error", 0) > 0)
        writer.close()
    (status,) = read_statuses(run)
    assert status.closed
    written = status.rows.get("verify", 0)
    assert written + sum(status.dropped.values()) >= ROWS
    trace = read_trace(run)
    assert trace.verify.num_rows == written
    assert any("dropped" in problem for problem in trace.problems)
    lost = [each for each in caplog.messages if "rows are being lost (disk_error)" in each]
    assert len(lost) == 1, "once, not with every flush"


def test_a_disk_that_is_full_for_a_while(disk: Path, until: Until) -> None:
    run = disk / "run"
    create_run(run, manifest(Spec()))
    writer = TraceWriter(run, source="worker0-1", flush_s=0.005)
    ballast = fill(disk)
    writer.put(verify(0, 1, 1.0, 1, 4, 1))
    until(lambda: writer.status().dropped == {"disk_error": 1})
    ballast.unlink()
    writer.put(verify(0, 2, 2.0, 2, 4, 1))
    until(lambda: writer.status().rows.get("verify") == 1)
    writer.close()
    trace = read_trace(run)
    assert trace.verify.column("step").to_pylist() == [2]
    assert trace.statuses[0].dropped == {"disk_error": 1}


def test_a_folder_that_is_removed_while_it_is_written(tmp_path: Path, until: Until) -> None:
    """The open file would take rows for ever, and nobody could read them."""
    run = tmp_path / "run"
    create_run(run, manifest(Spec()))
    writer = TraceWriter(run, source="worker0-1", flush_s=0.005)
    writer.put(verify(0, 1, 1.0, 1, 4, 1))
    until(lambda: writer.status().rows.get("verify") == 1)
    shutil.rmtree(run)
    writer.put(verify(0, 2, 2.0, 2, 4, 1))
    until(lambda: writer.status().dropped == {"disk_error": 1})
    writer.close()
    assert not run.exists()
