"""Engines whose probe is broken at the start, and engines on disks that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_process.job import run_jobs
from verification.disk_faults import (
    FAULTS,
    JOB,
    lost,
    with_fault,
    with_killed_writer,
    with_silent_receiver,
)
from verification.harmless import JOBS
from verification.starts.rows import ROWS, SHORT
from verification.starts.table import Started, Starts

from driftscope.trace.reader import read_trace

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started]:
    rows = {name: ROWS[name] for name in SHORT}
    return dict(Starts(tmp_path_factory.mktemp("starts")).run(rows))


@pytest.mark.parametrize("name", SHORT)
def test_it_serves_the_same_and_says_why(started: dict[str, Started], name: str) -> None:
    one, row = started[name], ROWS[name]
    assert one.served, one.log[-3000:]
    assert one.same
    (line,) = one.lines
    assert row.said in line
    assert (one.rounds > 0) == row.records


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Tokens without the probe; the prompts of each batch are the same."""
    jobs = {"off": JOBS["v1 off"]}
    return run_jobs(jobs, tmp_path_factory.mktemp("off"))["off"].tokens()


@pytest.mark.parametrize("fault", ["full", "removed"])
def test_a_disk_that_fails(fault: str, served: list[list[int]], tmp_path: Path) -> None:
    fared = with_fault(FAULTS[fault], tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == served
    assert "rows are being lost (disk_error); serving goes on" in fared.outcome.log
    if fault == "full":
        assert lost(fared) > 0, "the status file has kept room for itself"
    if fault == "removed":
        assert fared.statuses == ()


def test_a_writer_that_is_killed_is_replaced(served: list[list[int]], tmp_path: Path) -> None:
    fared = with_killed_writer(tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == served
    assert lost(fared) == 0
    assert all(status.closed for status in fared.statuses)
    assert sum(status.errors.get("writer", 0) for status in fared.statuses) >= 1
    rounds = read_trace(fared.outcome.run).verify
    assert {each["id"].split("-")[0] for each in fared.outcome.batches[0]["requests"]} <= {
        name.split("-")[0] for name in rounds.column("request").to_pylist()
    }


def test_a_receiver_that_hangs(served: list[list[int]], tmp_path: Path) -> None:
    fared = with_silent_receiver(tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == served
    assert lost(fared) == 0
    assert all(status.closed for status in fared.statuses)
