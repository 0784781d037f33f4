"""The writer: its queue, its files, and a disk that is full."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.killed_thread import kill
from support.runs import Spec, manifest, verify
from support.small_disk import fill, small_disk
from support.waiting import until

from driftscope.errors import TraceError
from driftscope.trace.manifest import MANIFEST, read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.records import Row
from driftscope.trace.segments import segments
from driftscope.trace.status import Status, read_statuses, status_path
from driftscope.trace.writer import NAME, StatusRecord, TraceWriter, WriterOptions
from driftscope.trace.writer_files import Batch, RecordFiles, check_unused, create_run


def _row(step: int) -> Row:
    return verify(0, step, time.time(), step, 4, 1)


def _writer(run: Path, **options: Any) -> TraceWriter:
    return TraceWriter(run, source="worker0-1", options=WriterOptions(**options))


def _soon(run: Path, **options: Any) -> TraceWriter:
    return _writer(run, flush_s=0.005, **options)


def _steps(run: Path) -> list[int]:
    steps: list[int] = read_trace(run).verify.column("step").to_pylist()
    return steps


def _status(run: Path) -> Status:
    (status,) = read_statuses(run)
    return status


def test_a_full_queue_drops_and_counts(run: Path) -> None:
    writer = _writer(run, queue_items=3)
    busy, release = threading.Event(), threading.Event()

    def slow(_: list[None]) -> list[Row]:
        busy.set()
        release.wait()
        return []

    writer.put((slow, None))
    assert busy.wait(5)
    assert [writer.put(_row(step)) for step in range(5)] == [True, True, True, False, False]
    release.set()
    writer.close()
    assert _steps(run) == [0, 1, 2]
    assert _status(run).dropped == {"queue_full": 2}
    assert read_trace(run).problems == ("worker0-1 dropped 2 rows (queue full)",)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_killed_is_replaced(run: Path) -> None:
    before, options = set(threading.enumerate()), WriterOptions(flush_s=0.013)
    writers = [TraceWriter(run, source=name, options=options) for name in ("worker0-1", "engine0")]
    (thread,) = set(threading.enumerate()) - before
    kill(thread)
    until(lambda: not thread.is_alive())
    writers[0].put(_row(1))
    writers[0].flush_soon()
    for writer in writers:
        writer.close()
    assert _steps(run) == [1]
    statuses = {status.source: status for status in read_statuses(run)}
    assert statuses["worker0-1"].errors == {"writer": 1}
    assert all(status.closed and not status.dropped for status in statuses.values())


def test_a_forked_process_does_not_write_for_its_parent(run: Path) -> None:
    writer = _writer(run)
    writer.put(_row(1))
    if not (child := os.fork()):
        writer.flush_soon()
        writer.close()
        os._exit(sum(thread.name == NAME for thread in threading.enumerate()))
    _, code = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(code) == 0, "the child began a writer's thread"
    assert not _status(run).closed
    writer.put(_row(2))
    writer.close()
    assert _steps(run) == [1, 2]
    assert _status(run).errors == {}


def test_sealed_segments_count_towards_the_bound(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope.trace.writer_files.SEGMENT_BYTES", 1)
    writer = _soon(run, max_bytes=1000)
    step = 0
    while not _status(run).dropped:
        step += 1
        writer.put(_row(step))
        time.sleep(0.02)
        assert step < 500
    writer.close()
    written = sum(path.stat().st_size for path in segments(run, "verify"))
    assert 1000 <= written < 10_000


def test_a_hand_over_that_cannot_be_encoded_costs_only_itself(run: Path) -> None:
    def broken(_: list[None]) -> Iterator[Row]:
        yield _row(2)
        raise ValueError("no such column")

    writer = _writer(run)
    for item in (_row(1), (broken, None), _row(3)):
        assert writer.put(item)
    writer.close()
    assert sorted(_steps(run)) == [1, 2, 3]
    status = _status(run)
    assert status.dropped == {"encode_error": 1}
    assert status.errors == {"encode": 1}
    assert status.first_error == "encode: ValueError: no such column"


def test_a_row_with_a_value_of_the_wrong_type_is_an_encode_error(run: Path) -> None:
    writer = _soon(run)
    writer.put(verify(0, "first", 0.0, 0, 4, 1))  # type: ignore[arg-type]
    until(lambda: bool(_status(run).errors))
    writer.put(_row(2))
    writer.close()
    assert _steps(run) == [2]
    assert _status(run).dropped == {"encode_error": 1}
    assert set(_status(run).errors) == {"encode"}


def test_errors_time_of_hooks_and_gauges_reach_the_status(run: Path) -> None:
    writer = _writer(run)
    writer.count_error("verify", KeyError("a"))
    writer.count_error("attention", ValueError("b"))
    writer.count_error("verify", KeyError("c"))
    writer.probe_s += 0.25
    writer.probe_s += 0.5
    assert (_status(run).rate, _status(run).overhead, _status(run).recording) == (None, None, None)
    writer.set_gauges(rate=0.5, overhead=0.01, recording=True)
    writer.set_gauges(rate=0.25)
    with pytest.raises(TypeError, match="no gauge of the status file: speed"):
        writer.set_gauges(speed=1.0)
    writer.close()
    status = _status(run)
    assert (status.rate, status.overhead, status.recording) == (0.25, 0.01, True)
    assert status.errors == {"verify": 2, "attention": 1}
    assert status.first_error == "verify: KeyError: 'a'"
    assert status.probe_s == 0.75


def test_a_process_that_may_not_write_any_more_goes_on_in_a_new_segment(
    run: Path, child: Callable[..., subprocess.Popen[str]]
) -> None:
    """RLIMIT_FSIZE stands for a full disk; it needs no privileges."""
    with child("full", run) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "rows are being lost (disk_error); serving goes on" in err
    steps, status = _steps(run), _status(run)
    assert steps == [1, 1000]
    assert status.dropped == {"disk_error": 10}
    assert status.closed
    assert str(status.first_error).startswith("write: OSError")
    assert len(segments(run, "verify")) == 2, "no segment is left behind for a failed write"


def test_a_segment_that_is_full_is_sealed_and_the_next_begun(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope.trace.writer_files.SEGMENT_BYTES", 1)
    writer = _soon(run)
    for step in (1, 2, 3):
        writer.put(_row(step))
        until(lambda n=step: _steps(run) == list(range(1, n + 1)))  # type: ignore[misc]
    writer.close()
    assert [path.name for path in segments(run, "verify")] == [
        f"verify-worker0-1-000{n}.parquet" for n in range(3)
    ]
    assert pq.read_table(segments(run, "verify")[2]).column("step").to_pylist() == [3]
    assert read_trace(run).problems == ()


@pytest.mark.parametrize(("mode", "code"), [("exits", 0), ("raises", 3), ("forks", 0)])
def test_a_process_that_just_ends_leaves_a_sealed_trace(
    run: Path, child: Callable[..., subprocess.Popen[str]], mode: str, code: int
) -> None:
    with child(mode, run) as process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    assert _steps(run) == list(range(50))
    assert read_trace(run).problems == ()
    assert not list(run.glob("*.arrows"))


def test_create_run_refuses_a_directory_that_holds_a_run(tmp_path: Path) -> None:
    create_run(tmp_path / "run", manifest(Spec(k=3)))
    with pytest.raises(TraceError, match="already holds a run") as caught:
        create_run(tmp_path / "run", manifest(Spec(k=5)))
    assert "\n" not in str(caught.value)
    assert read_manifest(tmp_path / "run").k == 3


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_where_the_directory_should_be(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    run = tmp_path / "file" / below
    for make in (lambda: create_run(run, manifest(Spec())), lambda: TraceWriter(run, source="a-1")):
        with pytest.raises(TraceError, match="cannot write a trace there") as caught:
            make()
        assert str(run) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_directory_without_the_right_to_write(tmp_path: Path) -> None:
    """Root may write everywhere, so a child gives up its rights first."""
    run = tmp_path / "run"
    run.mkdir(mode=0o555)
    folder = tmp_path
    while os.geteuid() == 0 and folder != folder.parent:  # let the child see the directory
        if folder.stat().st_uid == 0 and folder.name.startswith(("pytest-", tmp_path.name)):
            folder.chmod(0o755)
        folder = folder.parent
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            TraceWriter(run, source="a-1")
        except TraceError as error:
            code = 0 if "cannot write a trace there (Permission denied)" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_processes_of_one_start_join_its_run(tmp_path: Path) -> None:
    run, first = tmp_path / "run", manifest(Spec(k=3))
    create_run(run, first, join=True)
    create_run(run, replace(first, k=5), join=True)
    assert read_manifest(run) == first
    check_unused(run, first.run_id)
    for run_id in (None, "another"):
        with pytest.raises(TraceError, match="already holds a run"):
            check_unused(run, run_id)
    with pytest.raises(TraceError, match="already holds a run"):
        create_run(run, replace(first, run_id="another"), join=True)


def test_a_manifest_that_is_being_written_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, first = tmp_path / "run", manifest(Spec())
    run.mkdir()
    (run / MANIFEST).touch()
    late = threading.Timer(0.2, (run / MANIFEST).write_text, [first.to_json()])
    late.start()
    create_run(run, first, join=True)
    late.join()
    (run / MANIFEST).write_text("{")
    monkeypatch.setattr("driftscope.trace.writer_files.MANIFEST_S", 0.05)
    with pytest.raises(TraceError, match="already holds a run"):
        create_run(run, first, join=True)


def test_a_listener_hears_every_row_and_its_errors_cost_nothing(run: Path) -> None:
    heard: list[int] = []
    ended: list[bool] = []

    def hear(batches: Sequence[Batch]) -> None:
        heard.extend(batch.num_rows for _, batch in batches)
        raise RuntimeError("no figure")

    writer = _writer(run, max_bytes=1, flush_s=0.01)
    writer.subscribe(hear, lambda: ended.append(True))
    for n in range(1, 4):
        assert writer.put(_row(n))
        until(lambda n=n: sum(heard) == n)  # a flush each: the disk has room for the first only
    writer.close()
    assert sum(heard) == 3 and ended == [True]
    assert len(_steps(run)) + _status(run).dropped["disk_limit"] == 3
    assert _status(run).errors["telemetry"] >= 3


ROWS = 40_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk with a run on it."""
    with small_disk(tmp_path / "disk", 300) as folder:
        create_run(folder / "run", manifest(Spec()))
        yield folder


def hand_over(writer: TraceWriter, rows: int = ROWS) -> None:
    for i in range(rows):
        while not writer.put(_row(i)):
            writer.flush_soon()


def test_a_disk_that_stays_full(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = disk / "run"
    writer = _soon(run)
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
    lost = [message for message in caplog.messages if "rows are being lost (disk_error)" in message]
    assert len(lost) == 1, "once, not with every flush"


def test_a_disk_that_is_full_for_a_while(disk: Path) -> None:
    run = disk / "run"
    writer = _soon(run)
    ballast = fill(disk)
    writer.put(_row(1))
    until(lambda: writer.status().dropped == {"disk_error": 1})
    ballast.unlink()
    writer.put(_row(2))
    until(lambda: writer.status().rows.get("verify") == 1)
    writer.close()
    trace = read_trace(run)
    assert trace.verify.column("step").to_pylist() == [2]
    assert trace.statuses[0].dropped == {"disk_error": 1}
    assert trace.manifest.lost == {"disk_error": 1}


def test_a_folder_that_is_removed_while_it_is_written(run: Path) -> None:
    """The open file would take rows for ever, and nobody could read them."""
    writer = _soon(run)
    writer.put(_row(1))
    until(lambda: writer.status().rows.get("verify") == 1)
    shutil.rmtree(run)
    writer.put(_row(2))
    until(lambda: writer.status().dropped == {"disk_error": 1})
    writer.close()
    assert not run.exists()


def _lossy(run: Path, source: str, rows: int) -> TraceWriter:
    """A writer that has room for its first flush only, and was handed over `rows` after that."""
    writer = TraceWriter(run, source=source, options=WriterOptions(max_bytes=1, flush_s=60.0))
    for step in range(rows + 1):
        writer.put(_row(step))
        writer.flush_soon()
        while sum((*writer.status().rows.values(), *writer.status().dropped.values())) <= step:
            time.sleep(0.001)
    return writer


def test_a_folder_that_is_made_again_gets_its_manifest_again(run: Path) -> None:
    content, step = (run / MANIFEST).read_bytes(), 0
    writer = _soon(run)

    def written() -> int:
        nonlocal step
        writer.put(_row(step := step + 1))
        return writer.status().rows.get("verify", 0)

    until(lambda: written() > 0)
    shutil.rmtree(run.rename(run.with_name("removed")))
    run.mkdir()
    until(lambda: written() > 0 and (run / MANIFEST).exists())
    writer.close()
    assert (run / MANIFEST).read_bytes() == content or read_manifest(run).lost
    assert _steps(run)[-1] == step


def test_rows_go_to_a_new_file_where_the_folder_was_made_again(run: Path) -> None:
    files = RecordFiles(run, "worker0-1", 1 << 30)
    files.append([_row(1)])
    shutil.rmtree(run.rename(run.with_name("removed")))
    run.mkdir()
    files.append([_row(2)])
    files.append([_row(3)])
    files.seal()
    assert (run / MANIFEST).exists()
    assert _steps(run) == [2, 3]
    assert files.rows["verify"] == 3


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


def test_a_status_says_closed_once_everything_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may be killed between the two."""
    states = list[bool]()
    monkeypatch.setattr(StatusRecord, "rewrite", lambda _, status: states.append(status.closed))
    made = TraceWriter(tmp_path, source="worker0-1")
    made.set_gauges(reason="something to write at once")
    made.subscribe(lambda _: made.end())
    until(lambda: len(states) > 1)
    made.close()
    assert states == [False, True]
