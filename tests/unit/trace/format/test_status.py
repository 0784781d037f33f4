"""The status file of a recording process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driftscope.errors import DamagedTraceError
from driftscope.trace.reader import read_trace
from driftscope.trace.status import Status, read_statuses, status_path
from driftscope.trace.writer import TraceWriter

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


def test_a_newer_minor_version_may_say_more(tmp_path: Path) -> None:
    raw = {**json.loads(FULL.to_json()), "from_the_future": 1}
    status_path(tmp_path, "worker0-7").write_text(json.dumps(raw))
    assert read_statuses(tmp_path) == (FULL,)


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
