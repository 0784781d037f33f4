"""A benchmark's JSON is taken up again, says where it comes from, and keeps devices apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.results_file import ResultsFile, read


def test_it_is_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "stage.json"
    ResultsFile(path, "cpu").write(records=[1])
    assert ResultsFile(path, "cpu").facts["records"] == [1]
    assert ResultsFile(path, "cpu", again=True).facts == {}
    assert list(path.parent.iterdir()) == [path]


def test_it_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "stage.json"
    ResultsFile(path, "cpu").write(complete=True, ok=False, verdict="no")
    facts = json.loads(path.read_text())
    assert {"command", "date", "gpu", "python", "versions", "commit"} <= set(facts)
    assert (facts["complete"], facts["ok"], facts["verdict"]) == (True, False, "no")


def test_devices_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "stage.json"
    ResultsFile(path, "cpu").write()
    with pytest.raises(SystemExit, match="is of device cpu"):
        ResultsFile(path, "cuda")


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "none.json") == {}
    assert read(None) == {}
