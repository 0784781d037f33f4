"""Status files and faults of starts are bounded, and what is wrong in one is told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.runs import write_run

from driftscope.errors import DamagedTraceError, NotATraceError
from driftscope.trace.manifest import read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.runs import found
from driftscope.trace.status import (
    StartFault,
    Status,
    leave_fault,
    read_faults,
    read_statuses,
    remove_faults,
    status_path,
)
from driftscope.trace.writer import TraceWriter
from driftscope_probes.control import reach

FULL = Status(
    source="worker0-7",
    closed=True,
    flushed_s=1_750_000_000.25,
    rows={"draft": 3, "step": 9},
    dropped={"queue_full": 2, "disk_limit": 1},
    errors={"attention": 4, "write": 1},
    first_error="attention: ValueError: no",
    probe_s=0.125,
)


def _write(run: Path, status: Status) -> None:
    status_path(run, status.source).write_text(status.to_json())


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    plain = Status(source="core-1", closed=False, flushed_s=0.0)
    for status in (FULL, plain):
        _write(tmp_path, status)
    assert read_statuses(tmp_path) == (plain, FULL)
    newer = {**json.loads(FULL.to_json()), "from_the_future": 1}
    status_path(tmp_path, FULL.source).write_text(json.dumps(newer))
    assert read_statuses(tmp_path) == (plain, FULL)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"source": "x"}', "\udcff"])
def test_a_damaged_one_is_named(tmp_path: Path, text: str) -> None:
    path = status_path(tmp_path, "worker0-7")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DamagedTraceError, match=r"status-worker0-7\.json: not a readable status"):
        read_statuses(tmp_path)


def test_what_was_lost_is_said_in_words(run: Path) -> None:
    _write(run, FULL)
    limit, queue, errors = read_trace(run).problems
    assert limit == "worker0-7 dropped 1 rows (disk limit)"
    assert queue == "worker0-7 dropped 2 rows (queue full)"
    assert errors == (
        "worker0-7 caught 5 errors in its hooks (attention 4, write 1); "
        "first: attention: ValueError: no"
    )


def test_an_error_of_any_length_leaves_the_status_readable(run: Path) -> None:
    writer = TraceWriter(run, source="worker0-1")
    writer.count_error("verify", ValueError("x" * 1_000_000))
    writer.close()
    (status,) = read_statuses(run)
    assert str(status.first_error).startswith("verify: ValueError: xxx")
    assert len(str(status.first_error)) < 3000


FAULT = StartFault(
    kind="drafter", reason="no such drafter", source="worker0-7", start="abc", time_s=1.0
)


def test_it_is_read_as_it_was_left(tmp_path: Path) -> None:
    leave_fault(tmp_path / "run", FAULT)
    (fault,) = read_faults(tmp_path / "run")
    assert (fault.kind, fault.reason, fault.source) == (FAULT.kind, FAULT.reason, FAULT.source)
    assert fault.time_s > FAULT.time_s
    remove_faults(tmp_path / "run")
    assert read_faults(tmp_path / "run") == ()
    assert read_faults(tmp_path / "nothing") == ()


def test_who_reads_the_run_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    leave_fault(run, FAULT)
    for read in (read_manifest, found):
        with pytest.raises(NotATraceError, match="the server recorded nothing: no such drafter"):
            read(run)
    (process,) = reach(str(run)).status()
    assert process["down"] is True
    assert process["reason"] == "nothing is recorded: no such drafter"


def test_one_process_of_a_run_that_others_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    leave_fault(run, FAULT)
    assert "worker0-7 recorded nothing: no such drafter" in read_trace(run).problems


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"kind": "no", "reason": "", "source": "", "start": ""}', '{"kind": 1}'],
)
def test_a_file_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "fault-worker0-1.json").write_text(text)
    assert read_faults(tmp_path) == ()
