"""Completions that a shell offers at a press of Tab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driftscope.analysis.condition_columns import COLUMNS
from driftscope.analysis.query.row_filters import BY
from driftscope.cli import options
from driftscope.cli.app import app
from driftscope.findings.catalogue import CATALOGUE, REPLAYS
from driftscope.vocabulary import GATED

HEAVY = {"pyarrow", "numpy", "pandas", "duckdb", "ibis", "plotly", "scipy", "torch", "vllm"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "two"):
        run = tmp_path / "driftscope-runs" / name
        run.mkdir(parents=True)
        (run / "manifest.json").touch()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _words(found: list[options.Word]) -> list[str]:
    return [word for word, _ in found]


def test_runs_and_latest(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _words(options.runs(""))[:3] == [
        "latest",
        "driftscope-runs/one",
        "driftscope-runs/two",
    ]
    assert _words(options.runs("driftscope-runs/t"))[0] == "driftscope-runs/two"
    assert _words(options.runs("oth")) == ["other/"]
    assert options.runs("nothing/like/this") == []
    monkeypatch.chdir(runs / "other")
    assert options.runs("") == [], "latest is offered only if there is a run"


def test_ids_of_findings_and_severities() -> None:
    assert _words(options.rules("sink")) == ["sink_lost"]
    assert _words(options.rules("hi"))[:1] == ["high"]
    titles = {name: entry.title for name, entry in (CATALOGUE | REPLAYS).items()}
    assert dict(options.rules("")) == titles | dict.fromkeys(GATED, "findings of this severity")


def test_the_last_word_of_a_condition_is_a_column() -> None:
    assert _words(options.columns("")) == list(COLUMNS)
    assert _words(options.columns("label = 'a' and cont")) == ["label = 'a' and context"]


def test_ways_to_split_a_run() -> None:
    assert set(BY) <= set(options.SEGMENTS)


LINE = "driftscope analyze driftscope-runs/o"


@pytest.mark.process
@pytest.mark.parametrize(
    ("shell", "environ"),
    [
        ("bash", {"COMP_WORDS": LINE, "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": LINE}),
        ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": LINE}),
    ],
)
def test_each_shell_is_answered_without_a_heavy_import(
    runs: Path, shell: str, environ: dict[str, str]
) -> None:
    code = (
        "import json, sys\n"
        "from driftscope.cli.app import main\n"
        "try:\n main()\n"
        "except SystemExit:\n pass\n"
        f"print(json.dumps(sorted({HEAVY!r} & set(sys.modules))), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "_DRIFTSCOPE_COMPLETE": f"complete_{shell}",
            **environ,
        },
        cwd=runs,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "driftscope-runs/one" in done.stdout and "two" not in done.stdout
    assert json.loads(done.stderr) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_shown(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = CliRunner().invoke(app, ["--show-completion", shell])
    assert done.exit_code == 0, done.output
    assert f"complete_{shell}" in done.stdout
