"""Runs are found below a folder, by `latest`, and offered where a folder is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.runs import Spec, write_run

from driftscope.errors import NotATraceError
from driftscope.trace.manifest import CLIENT, MANIFEST
from driftscope.trace.runs import DEPTH, found, newest, runs_in, search
from driftscope.trace.status import StartFault, Status, leave_fault, status_path

SMALL = Spec(requests=1, rounds=1)


def _run(path: Path, created_s: float, engine: str = "vllm") -> Path:
    write_run(path, SMALL)
    content = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**content, "created_s": created_s, "engine": engine}))
    return path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two probe's runs and a newer replay in the usual folder."""
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "driftscope-runs" / "old", 100.0)
    _run(tmp_path / "driftscope-runs" / "new", 200.0)
    _run(tmp_path / "driftscope-runs" / "asked", 300.0, CLIENT)
    return tmp_path / "driftscope-runs"


def test_runs_are_listed_newest_first(runs: Path) -> None:
    assert [run.name for run in runs_in(runs)] == ["asked", "new", "old"]


def test_latest_is_the_newest_run_of_a_probe(runs: Path) -> None:
    assert found(Path("latest")) == Path("driftscope-runs/new")
    assert found(runs / "latest") == runs / "new"
    assert found(runs / "old") == runs / "old"


def test_a_replay_is_the_latest_where_there_is_nothing_else(tmp_path: Path) -> None:
    run = _run(tmp_path / "asked", 1.0, CLIENT)
    assert newest([tmp_path]) == run


def test_a_folder_called_latest_is_meant_where_there_is_one(runs: Path) -> None:
    _run(Path("latest"), 1.0)
    assert found(Path("latest")) == Path("latest")


def test_a_parent_folder_offers_its_runs(runs: Path) -> None:
    with pytest.raises(NotATraceError) as refused:
        found(runs)
    words = str(refused.value)
    assert words.index("/asked") < words.index("/new") < words.index("/old")
    assert f"or {runs / 'latest'}" in words and "has no manifest.json" in words


def test_a_missing_run_names_its_neighbours_and_the_start_that_failed(runs: Path) -> None:
    with pytest.raises(NotATraceError, match=r"has not loaded its drafter.*/new") as refused:
        found(runs / "missing")
    assert "no such directory" in str(refused.value)


def test_a_start_that_never_loaded_a_drafter_is_named(tmp_path: Path) -> None:
    run = tmp_path / "begun"
    run.mkdir()
    status = Status(source="core-1", closed=True, flushed_s=1.0)
    status_path(run, status.source).write_text(status.to_json())
    with pytest.raises(NotATraceError, match="no server got as far as loading its drafter"):
        found(run)
    leave_fault(run, StartFault(kind="drafter", reason="no such drafter", source="worker0-1"))
    with pytest.raises(NotATraceError, match="the server recorded nothing: no such drafter"):
        found(run)
    assert runs_in(tmp_path) == (run,)


def test_latest_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotATraceError, match="no run in driftscope-runs"):
        found(Path("latest"))


def test_a_file_is_no_run_and_is_returned(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    assert found(tmp_path / "report.html") == tmp_path / "report.html"


def test_links_are_not_followed_and_the_search_has_a_depth(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*map(str, range(DEPTH)))
    _run(deep, 1.0)
    _run(tmp_path.joinpath("too", *map(str, range(DEPTH))), 1.0)
    outside = _run(tmp_path.parent / f"{tmp_path.name}-outside", 1.0)
    (tmp_path / "link").symlink_to(outside)
    assert list(search(tmp_path)) == [deep]


def test_braces_in_a_path_are_no_format(tmp_path: Path) -> None:
    _run(tmp_path / "{runs}" / "a", 1.0)
    with pytest.raises(NotATraceError, match=r"\{runs\}/a"):
        found(tmp_path / "{runs}")
