"""Several processes in one run directory: readers beside a writer, several engines."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ibis
import pytest
from support.runs import Spec, manifest, verify

from driftscope.analysis.query.record_views import open_run, queried
from driftscope.errors import TraceError
from driftscope.trace.control import Change, ask, read_control
from driftscope.trace.reader import read_trace
from driftscope.trace.segments import SEALED
from driftscope.trace.status import Status, read_statuses
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import create_run

pytestmark = pytest.mark.process

Child = Callable[[str, Path], "subprocess.Popen[str]"]
VERIFY = ibis.table(ibis.Schema.from_pyarrow(queried("verify")), name="verify")


def in_memory(run: Path) -> list[int]:
    return list(read_trace(run).verify.column("step").to_pylist())


def in_place(run: Path) -> list[int]:
    tables = open_run(run)
    try:
        return sorted(tables.engine.rows(VERIFY.select("step")).column("step").to_pylist())
    finally:
        tables.engine.close()


def looked_at(run: Path, read: Callable[[Path], list[int]], writing: Callable[[], bool]) -> int:
    """Read again and again while somebody writes; returns how often the rows became more."""
    rows = grown = 0
    last = False
    while not last:
        last = not writing()
        steps = read(run)
        assert steps == list(range(len(steps))), "no row twice, none missing between two"
        assert len(steps) >= rows, "a row that was there stays"
        grown += len(steps) > rows
        rows = len(steps)
    return grown


def test_two_readers_beside_a_writer_that_seals_all_the_time(run: Path, child: Child) -> None:
    process = child("seals", run)
    with ThreadPoolExecutor() as pool:
        looks = [
            pool.submit(looked_at, run, read, lambda: process.poll() is None)
            for read in (in_memory, in_place)
        ]
        _, errors = process.communicate(timeout=60)
        grown = [look.result(timeout=60) for look in looks]
    assert process.returncode == 0, errors
    assert min(grown) > 3, "both looked while it grew"
    assert len(list(run.glob(f"*{SEALED}"))) > 10
    trace = read_trace(run)
    assert trace.problems == () and trace.verify.num_rows == trace.statuses[0].rows["verify"]


def test_several_engines_in_one_folder(tmp_path: Path) -> None:
    """Processes of one run join it at the same time and are all read; another run is refused."""
    run, count = tmp_path / "run", 4

    def begun(number: int) -> TraceWriter:
        create_run(run, manifest(Spec()), join=True)
        return TraceWriter(
            run, source=f"worker0.dp{number}-{number + 1}", options=WriterOptions(flush_s=0.005)
        )

    def fill(writer: TraceWriter) -> None:
        for step in range(50):
            writer.put(verify(0, step, float(step), step, 4, 1))
        writer.close()

    with ThreadPoolExecutor(count) as pool:
        writers = list(pool.map(begun, range(count)))
        with pytest.raises(TraceError, match="already holds a run"):
            create_run(run, manifest(Spec()))
        list(pool.map(fill, writers))
    trace = read_trace(run)
    rows = trace.verify.select(["replica", "step"]).to_pylist()
    assert sorted((row["replica"], row["step"]) for row in rows) == [
        (replica, step) for replica in range(count) for step in range(50)
    ]
    assert trace.problems == () and all(status.closed for status in trace.statuses)


def test_a_status_that_is_met_twice_in_a_listing_counts_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory may list a file twice that is replaced meanwhile."""
    TraceWriter(run, source="worker0-1").close()
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [*listed(folder), *listed(folder)])
    (status,) = read_statuses(run)
    assert isinstance(status, Status)


def test_requests_to_a_probe_that_come_at_once_are_all_kept(run: Path) -> None:
    """Each has a revision of its own, and the file holds what all of them asked for."""
    each, start = 5, threading.Barrier(4)
    changes = [
        Change(recording=False),
        Change(every=7),
        Change(per_head=True),
        Change(labels=("a", "b")),
    ]

    def request(change: Change) -> list[int]:
        start.wait(10)
        return [ask(run, change).revision for _ in range(each)]

    with ThreadPoolExecutor(len(changes)) as pool:
        revisions = [number for found in pool.map(request, changes) for number in found]
    assert sorted(revisions) == list(range(1, len(changes) * each + 1))
    asked = read_control(run)
    assert asked.revision == len(revisions)
    assert asked.change == Change(recording=False, every=7, per_head=True, labels=("a", "b"))
