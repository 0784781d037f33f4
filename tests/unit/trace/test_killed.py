"""Writers that are killed, and writers beside each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ibis
import pytest
from support import killed_writer
from support.killed_writer import MOMENTS, ROWS_AT_ONCE, SOURCE, handed_over
from support.runs import Spec, manifest, verify

from driftscope.analysis.query.record_views import open_run, queried
from driftscope.boundary.files import LEFTOVER_S, PARTIAL
from driftscope.errors import NotATraceError, TraceError
from driftscope.trace.control import ProbeChange, ask, read_control
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import read_trace
from driftscope.trace.schema import to_batch
from driftscope.trace.segments import SEALED, STREAM, next_number, seal, segment_path
from driftscope.trace.status import Status, read_statuses, status_path
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import (
    ROOM_BYTES,
    RecordFiles,
    create_run,
    overwrite,
    write_status,
)

pytestmark = pytest.mark.process

WRITER = Path(killed_writer.__file__)
LATE = [verify(9, 1000 + i, float(i), i, 4, 1) for i in range(7)]
HANDED_OVER = to_batch("verify", handed_over()).to_pylist()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run for each step of the writer, killed right before it and right after it, in order."""
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-W", "error", str(WRITER), str(folder)],
        env=environment,
        check=True,
        timeout=120,
    )
    return sorted(folder.iterdir(), key=lambda run: (run.name.partition("-")[2], run.name))


@pytest.fixture
def copies(killed: list[Path], tmp_path: Path) -> list[Path]:
    """Copies of the runs, to be changed."""
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in killed]


def unfinished(run: Path) -> list[Path]:
    return [path for path in run.iterdir() if path.name.endswith(PARTIAL)]


def test_every_run_holds_a_prefix_of_what_was_handed_over(killed: list[Path]) -> None:
    assert len(killed) > 50, "the writer has that many steps, before and after each"
    counts = dict.fromkeys(MOMENTS, 0)
    for run in killed:
        moment = run.name.partition("-")[2]
        if not (run / MANIFEST).exists():
            with pytest.raises(NotATraceError):
                read_trace(run)
            assert not counts[moment], "only before there is anything to read"
            continue
        found = read_trace(run).verify.to_pylist()
        assert found == HANDED_OVER[: len(found)], run
        assert len(found) % ROWS_AT_ONCE == 0, run
        assert len(found) >= counts[moment], "a later kill loses no more"
        counts[moment] = len(found)
    assert counts == dict.fromkeys(MOMENTS, len(HANDED_OVER)), "the last ones were not killed"


def test_files_in_place_hold_the_same_rows(killed: list[Path]) -> None:
    seen = set()
    for run in killed:
        kinds = tuple(sorted(path.suffix for path in run.iterdir() if path.suffix != PARTIAL))
        if kinds in seen or not (run / MANIFEST).exists():
            continue
        seen.add(kinds)
        view = ibis.table(ibis.Schema.from_pyarrow(queried("verify")), name="verify")
        rows = open_run(run).engine.rows(view.order_by("step")).to_pylist()
        assert [row["step"] for row in rows] == list(range(len(rows))), run
        assert len(rows) == read_trace(run).verify.num_rows, run
    assert len(seen) > 3


def test_a_stream_beside_its_sealed_file_is_read_once(killed: list[Path]) -> None:
    twice = 0
    for run in killed:
        sealed = {path.stem for path in run.glob(f"*{SEALED}")}
        twice += bool(sealed & {path.stem for path in run.glob(f"*{STREAM}")})
    assert twice, "killed between the rename and the removal"


def test_the_next_start_cleans_up(copies: list[Path]) -> None:
    """And has its own rows beside those that were there, under the same source, too."""
    left, long_ago = 0, time.time() - 2 * LEFTOVER_S
    for run in copies:
        if not run.exists():
            run.mkdir()
        before = read_trace(run).verify.num_rows if (run / MANIFEST).exists() else 0
        for path in unfinished(run):
            left += 1
            os.utime(path, (long_ago, long_ago))
        ended = any(status.closed for status in read_statuses(run))
        if not ended:
            create_run(run, manifest(Spec()), join=True)
        writer = TraceWriter(run, source=SOURCE, options=WriterOptions(flush_s=60.0))
        writer.put((lambda lists: [row for rows in lists for row in rows], LATE))
        writer.close()
        assert unfinished(run) == [], run
        found = read_trace(run)
        assert found.verify.num_rows == before + len(LATE), run
        assert found.verify.slice(before).column("step").to_pylist() == [r.step for r in LATE], run
    assert left > 5


def test_what_another_process_writes_just_now_stays(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    fresh, old = run / f".a.parquet.x1{PARTIAL}", run / f".a.parquet.x2{PARTIAL}"
    others = [run / "notes.partial", run / ".hidden"]
    for path in (fresh, old, *others):
        path.write_text("half")
    long_ago = time.time() - 2 * LEFTOVER_S
    for path in (old, *others):
        os.utime(path, (long_ago, long_ago))
    create_run(run, manifest(Spec()))
    assert fresh.exists() and not old.exists()
    assert all(path.exists() for path in others), "files that driftscope does not make"


def test_numbers_go_on_after_those_of_a_process_that_was_killed(run: Path) -> None:
    """Its sealed files are neither replaced nor hidden behind."""
    for step in range(3):
        files = RecordFiles(run, SOURCE, 1 << 30)
        files.append([verify(0, step, 1.0, 1, 4, 1)])
        if step != 1:
            files.seal()
    assert next_number(run, "verify", SOURCE) == 3
    assert next_number(run, "verify", "worker0") == 0, "another source, whose name begins so"
    assert next_number(run, "draft", SOURCE) == 0
    assert read_trace(run).verify.column("step").to_pylist() == [0, 1, 2]


def test_sealing_once_more_what_was_sealed_changes_nothing(run: Path) -> None:
    files = RecordFiles(run, SOURCE, 1 << 30)
    files.append([verify(0, 1, 1.0, 1, 4, 1)])
    stream = segment_path(run, "verify", SOURCE, 0)
    content = stream.read_bytes()
    files.seal()
    stream.write_bytes(content)  # as after a kill before it was removed
    assert read_trace(run).verify.num_rows == 1
    seal(stream)
    assert read_trace(run).verify.num_rows == 1


def test_an_overwritten_status_is_never_followed_by_an_older_one_s_end(tmp_path: Path) -> None:
    """A full disk has it written in place; a kill must not leave two texts in one file."""
    path = status_path(tmp_path, SOURCE)
    write_status(path, '{"a": "' + "x" * ROOM_BYTES + '"}\n')
    room = path.stat().st_size
    overwrite(path, b'{"b": 1}\n')
    assert path.read_text().strip() == '{"b": 1}'
    assert path.stat().st_size == room, "no second step in which the rest is cut off"
    overwrite(path, b'{"c": "' + b"y" * 3 * ROOM_BYTES + b'"}\n')
    assert path.read_text().startswith('{"c"') and path.read_text().endswith('"}\n')


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
    turns, start = 5, threading.Barrier(3)
    changes = [
        ProbeChange(recording=False),
        ProbeChange(every=7),
        ProbeChange(labels=("a", "b")),
    ]

    def request(change: ProbeChange) -> list[int]:
        start.wait(10)
        return [ask(run, change).revision for _ in range(turns)]

    with ThreadPoolExecutor(len(changes)) as pool:
        revisions = [number for found in pool.map(request, changes) for number in found]
    assert sorted(revisions) == list(range(1, len(changes) * turns + 1))
    asked = read_control(run)
    assert asked.revision == len(revisions)
    assert asked.change == ProbeChange(recording=False, every=7, labels=("a", "b"))
