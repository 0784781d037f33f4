"""Losses are reported in the status, the log and by readers, even if the disk stays full."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import Spec, manifest, verify
from support.small_disk import fill, small_disk

from driftscope.trace.manifest import MANIFEST, read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.status import read_statuses, status_path
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import create_run

ROWS = 40_000
Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk with a run on it."""
    with small_disk(tmp_path / "disk", 300) as folder:
        create_run(folder / "run", manifest(Spec()))
        yield folder


def hand_over(writer: TraceWriter, rows: int = ROWS) -> None:
    for i in range(rows):
        while not writer.put(verify(0, i, float(i), i, 4, 1)):
            writer.flush_soon()


def test_a_disk_that_stays_full(disk: Path, until: Until, caplog: pytest.LogCaptureFixture) -> None:
    run = disk / "run"
    writer = TraceWriter(run, source="worker0-1", options=WriterOptions(flush_s=0.005))
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
    assert trace.manifest.lost == {}, "no room for a new one: the old one is whole"
    lost = [each for each in caplog.messages if "rows are being lost (disk_error)" in each]
    assert len(lost) == 1, "once, not with every flush"


def test_a_disk_that_is_full_for_a_while(disk: Path, until: Until) -> None:
    run = disk / "run"
    writer = TraceWriter(run, source="worker0-1", options=WriterOptions(flush_s=0.005))
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
    assert trace.manifest.lost == {"disk_error": 1}


def test_a_folder_that_is_removed_while_it_is_written(run: Path, until: Until) -> None:
    """The open file would take rows for ever, and nobody could read them."""
    writer = TraceWriter(run, source="worker0-1", options=WriterOptions(flush_s=0.005))
    writer.put(verify(0, 1, 1.0, 1, 4, 1))
    until(lambda: writer.status().rows.get("verify") == 1)
    shutil.rmtree(run)
    writer.put(verify(0, 2, 2.0, 2, 4, 1))
    until(lambda: writer.status().dropped == {"disk_error": 1})
    writer.close()
    assert not run.exists()


def _lossy(run: Path, source: str, rows: int) -> TraceWriter:
    """A writer that has room for its first flush only, and was handed over `rows` after that."""
    writer = TraceWriter(run, source=source, options=WriterOptions(max_bytes=1, flush_s=60.0))
    for step in range(rows + 1):
        writer.put(verify(0, step, float(step), step, 4, 1))
        writer.flush_soon()
        while sum((*writer.status().rows.values(), *writer.status().dropped.values())) <= step:
            time.sleep(0.001)
    return writer


def test_the_manifest_counts_what_every_process_lost(run: Path) -> None:
    first = read_manifest(run)
    writers = [_lossy(run, f"worker0.dp{n}-1", n) for n in (1, 2, 3)]
    healthy = TraceWriter(run, source="engine0-1")
    with ThreadPoolExecutor() as pool:
        list(pool.map(TraceWriter.close, [*writers, healthy]))
    assert read_manifest(run) == replace(first, lost={"disk_limit": 1 + 2 + 3})
    assert not any("manifest" in problem for problem in read_trace(run).problems)
    status_path(run, "worker0.dp2-1").unlink()
    assert "the manifest counts 6 rows dropped (disk limit), the status files 4" in "".join(
        read_trace(run).problems
    )


def test_a_run_that_lost_nothing_keeps_its_manifest(run: Path) -> None:
    before = (run / MANIFEST).stat()
    writer = TraceWriter(run, source="worker0-1")
    writer.put(verify(0, 1, 1.0, 1, 4, 1))
    writer.close()
    assert (run / MANIFEST).stat().st_ino == before.st_ino
    assert read_manifest(run).lost == {}


def test_a_manifest_of_a_later_version_keeps_what_is_new_in_it(run: Path) -> None:
    content = json.loads((run / MANIFEST).read_text())
    (run / MANIFEST).write_text(json.dumps({**content, "newer": [1]}))
    _lossy(run, "worker0-1", 1).close()
    found = json.loads((run / MANIFEST).read_text())
    assert found["lost"] == {"disk_limit": 1} and found["newer"] == [1]


def test_two_processes_of_one_name_count_each_their_own(run: Path) -> None:
    """Containers count processes anew; neither status nor digests of the first are overwritten."""
    first, second = (_lossy(run, "worker0.dp3-7", lost) for lost in (1, 2))
    assert (first.source, second.source) == ("worker0.dp3-7", "worker0.dp3-7.2")
    first.close()
    second.close()
    statuses = read_statuses(run)
    assert {status.source: status.dropped for status in statuses} == {
        first.source: {"disk_limit": 1},
        second.source: {"disk_limit": 2},
    }
    sealed = {path.name for path in run.glob("*.parquet")}
    assert {name for status in statuses for name in status.digests} == sealed
    trace = read_trace(run)
    assert trace.verify.column("replica").to_pylist() == [3, 3]
    assert trace.manifest.lost == {"disk_limit": 3}
