"""Only real, closed run directories are removed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import START_S, Spec, write_run

from driftscope.errors import TraceError
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.runs import Bounds, RunEntry, beyond, entry_of, remove
from driftscope.trace.status import StartFault, Status, leave_fault, status_path
from driftscope.vocabulary import RunState

SPEC = Spec(requests=2, rounds=2)
DAY_S = 86400.0
MB = 1_000_000


def _unclosed(run: Path, source: str, flushed_s: float) -> None:
    path = status_path(run, source)
    path.write_text(Status(source=source, closed=False, flushed_s=flushed_s).to_json())
    os.utime(path, (flushed_s, flushed_s))


def test_a_closed_run_is_removed_whole_and_nothing_else(tmp_path: Path) -> None:
    run, other = (write_run(tmp_path / name, SPEC) for name in ("run", "other"))
    before = sorted(path.name for path in other.iterdir())
    remove(run)
    assert not run.exists()
    assert sorted(path.name for path in other.iterdir()) == before


def test_a_link_to_a_run_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SPEC)
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(TraceError, match="symbolic link"):
        remove(tmp_path / "link")
    assert (run / MANIFEST).exists()


@pytest.mark.parametrize("name", ["report.html", "notes", "draft-mine.parquet.bak"])
def test_a_directory_with_a_foreign_file_is_refused(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", SPEC)
    (run / name).touch()
    with pytest.raises(TraceError, match=name):
        remove(run)
    assert (run / MANIFEST).exists() and (run / name).exists()


def test_a_link_inside_a_run_is_refused(tmp_path: Path) -> None:
    """Even if it has the name of a recorder's file."""
    run = write_run(tmp_path / "run", SPEC)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (run / "status-worker9-1.json").symlink_to(precious)
    with pytest.raises(TraceError, match="status-worker9-1"):
        remove(run)
    assert precious.read_text() == "kept"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "missing"):
        with pytest.raises(TraceError):
            remove(path)
    assert (tmp_path / "folder").is_dir()


def test_a_run_in_use_is_refused_whatever_is_asked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SPEC)
    _unclosed(run, f"worker0-{os.getpid()}", time.time())
    with pytest.raises(TraceError, match="still being recorded"):
        remove(run, unclosed=True)
    assert (run / MANIFEST).exists()


def test_a_killed_run_is_removed_only_if_asked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SPEC)
    _unclosed(run, "worker0-999999999", START_S)
    with pytest.raises(TraceError, match="--unclosed"):
        remove(run)
    remove(run, unclosed=True)
    assert not run.exists()


def test_a_start_that_never_loaded_its_drafter_can_be_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    path = status_path(run, "core-1")
    path.write_text(Status(source="core-1", closed=True, flushed_s=START_S).to_json())
    leave_fault(run, StartFault(kind="drafter", reason="no such drafter", source="worker0-1"))
    remove(run)
    assert not run.exists()


def _entries(now_s: float) -> list[RunEntry]:
    """Five runs of 10 MB, newest first, 1, 2, 3, 4 and 5 days old."""
    return [
        RunEntry(
            path=Path(f"run{days}"),
            created_s=now_s - days * DAY_S,
            state=RunState.CLOSED,
            octets=10 * MB,
        )
        for days in range(1, 6)
    ]


def _names(chosen: tuple[RunEntry, ...]) -> list[str]:
    return [entry.path.name for entry in chosen]


def test_runs_beyond_an_age_are_chosen_but_the_newest_are_kept() -> None:
    now_s = 1e9
    old = Bounds(older_s=2.5 * DAY_S)
    assert _names(beyond(_entries(now_s), old, now_s)) == ["run3", "run4", "run5"]
    assert _names(beyond(_entries(now_s), replace(old, keep=4), now_s)) == ["run5"]


def test_the_oldest_runs_beyond_a_total_size_are_chosen() -> None:
    now_s = 1e9
    chosen = beyond(_entries(now_s), Bounds(total_octets=25 * MB), now_s)
    assert _names(chosen) == ["run3", "run4", "run5"]
    assert beyond(_entries(now_s), Bounds(total_octets=50 * MB), now_s) == ()


@pytest.mark.parametrize("state", [RunState.RECORDING, RunState.NOT_CLOSED, RunState.UNREADABLE])
def test_a_run_that_is_not_closed_is_never_chosen(state: str) -> None:
    now_s = 1e9
    entries = [replace(entry, state=state) for entry in _entries(now_s)]
    assert beyond(entries, Bounds(older_s=0.0, total_octets=0), now_s) == ()


def test_a_real_run_is_chosen_by_its_entry(tmp_path: Path) -> None:
    entry = entry_of(write_run(tmp_path / "run", SPEC))
    assert beyond([entry], Bounds(older_s=DAY_S), time.time()) == (entry,)
