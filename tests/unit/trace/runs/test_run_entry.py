"""The facts of a run in a list: rounds, size, state."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.runs import START_S, Spec, write_run

from driftscope.trace.manifest import MANIFEST
from driftscope.trace.runs import alive, entry_of
from driftscope.trace.status import StartFault, Status, leave_fault, status_path
from driftscope.vocabulary import RunState

SPEC = Spec(requests=3, rounds=5, undrafted=("k_zero",))


def _status(run: Path, source: str, flushed_s: float, *, closed: bool) -> None:
    path = status_path(run, source)
    path.write_text(Status(source=source, closed=closed, flushed_s=flushed_s).to_json())
    os.utime(path, (flushed_s, flushed_s))


def _unclosed(run: Path, source: str, flushed_s: float) -> Path:
    """A run in which one process has not closed."""
    write_run(run, SPEC)
    _status(run, source, flushed_s, closed=False)
    return run


@pytest.mark.parametrize("closed", [True, False], ids=["sealed", "streams"])
def test_rounds_are_drafts_that_were_verified(tmp_path: Path, closed: bool) -> None:
    entry = entry_of(write_run(tmp_path / "run", SPEC, closed=closed))
    assert entry.rounds == 15, "the undrafted step is no round"
    assert entry.octets == sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    assert entry.created_s == START_S and not entry.is_replay


def test_a_closed_run(tmp_path: Path) -> None:
    assert entry_of(write_run(tmp_path / "run", SPEC)).state == RunState.CLOSED


def test_a_run_of_a_living_process_is_being_recorded(tmp_path: Path) -> None:
    run = _unclosed(tmp_path / "run", f"worker0-{os.getpid()}", time.time())
    assert entry_of(run).state == RunState.RECORDING


def test_a_run_that_was_written_just_now_elsewhere_is_being_recorded(tmp_path: Path) -> None:
    run = _unclosed(tmp_path / "run", "worker0-999999999", time.time())
    assert entry_of(run).state == RunState.RECORDING


def test_a_killed_run_is_not_closed(tmp_path: Path) -> None:
    run = _unclosed(tmp_path / "run", "worker0-999999999", START_S)
    assert entry_of(run).state == RunState.NOT_CLOSED


def test_another_process_with_the_same_number_does_not_keep_a_run_alive(tmp_path: Path) -> None:
    assert alive(f"worker0-{os.getpid()}", time.time())
    assert not alive(f"worker0-{os.getpid()}", START_S)
    assert alive(f"worker0-{os.getpid()}.2", time.time())
    assert not alive("worker0", time.time())


def test_an_engine_that_ended_before_its_drafter_was_loaded(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    _status(tmp_path / "run", "core-999999999", START_S, closed=True)
    entry = entry_of(tmp_path / "run")
    assert (entry.state, entry.manifest, entry.rounds) == (RunState.NO_DRAFTER, None, None)
    leave_fault(tmp_path / "run", StartFault(kind="drafter", reason="no such drafter"))
    assert entry_of(tmp_path / "run").problem == "no such drafter"


def test_a_run_without_rounds(tmp_path: Path) -> None:
    entry = entry_of(write_run(tmp_path / "run", Spec(requests=0)))
    assert (entry.state, entry.rounds) == (RunState.EMPTY, 0)


def test_an_unreadable_run_is_listed_with_the_reason(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SPEC)
    (run / MANIFEST).write_text("{")
    entry = entry_of(run)
    assert entry.state == RunState.UNREADABLE and "manifest" in entry.problem


def test_damaged_rows_leave_the_rounds_unknown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SPEC)
    for path in run.glob("verify-*.parquet"):
        path.write_bytes(b"no Parquet")
    assert entry_of(run).rounds is None
