"""The table of `probe status` prints texts of any origin as visible characters."""

from __future__ import annotations

from typing import Any

import pytest
from support.hostile.texts import TEXTS

from driftscope.cli.screens.probe import show


def _process(text: str) -> dict[str, Any]:
    return {
        "source": text,
        "closed": False,
        "answered": False,
        "rows": {},
        "dropped": {},
        "errors": {text: 1},
        "first_error": text,
        "control": {"labels": [text]},
    }


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], text: str, as_json: bool
) -> None:
    show("run", [_process(text)], as_json=as_json)
    out, err = capsys.readouterr()
    for line in [*out.splitlines(), *err.splitlines()]:
        assert line.isprintable(), line
    assert err.count("\n") == 2


def test_a_password_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("http://me:s3cret@host:8000", [], as_json=True)
    assert "s3cret" not in capsys.readouterr().out


def _worker(**control: Any) -> dict[str, Any]:
    return {
        "source": "worker0-14423",
        "closed": False,
        "recording": True,
        "rate": 0.0244,
        "overhead": 0.0243,
        "rows": {"draft": 1_025_728},
        "dropped": {},
        "errors": {},
        "control": {"budget": 0.01, "per_head": False, "labels": [], **control},
    }


def test_nothing_is_cut_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show("run", [_worker()], as_json=False)
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "process" and "draft rows" in head
    for word in ("worker0-14423", "recording", "budget 1 %", "2.44 %", "2.43 %", "1,025,728"):
        assert word in row
    assert "by head" not in head and "requests" not in head


@pytest.mark.parametrize(
    ("control", "name", "cell"),
    [({"per_head": True}, "by head", "yes"), ({"labels": ["chat"]}, "requests", "chat")],
)
def test_what_is_recorded_in_another_way_has_its_column(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    control: dict[str, Any],
    name: str,
    cell: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    show("run", [_worker(**control)], as_json=False)
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert row[head.index(name) :].startswith(cell)


def test_a_run_without_processes_has_the_names_of_the_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show("run", [], as_json=False)
    assert capsys.readouterr().out.startswith("process")
