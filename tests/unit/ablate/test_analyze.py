"""`driftscope analyze` of an ablation, and other commands that are given one."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from support.ablations import constructed_ablation
from support.checkpoints import TARGET
from typer.testing import CliRunner, Result

from driftscope.ablate.result import to_json, write_run
from driftscope.boundary.json_document import RUNS
from driftscope.cli.app import app
from driftscope.errors import UsageError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.json_schema import schema_of
from driftscope.trace.runs import entry_of, newest
from driftscope.vocabulary import RunState
from driftscope_lab.trio import trio_path

RESULT = constructed_ablation()


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files, target = open_drafter(str(trio_path() / "eagle3")), open_target(str(TARGET))
    write_run(tmp_path / "why", RESULT, files, target)
    return tmp_path / "why"


def test_a_run_directory_and_its_document_become_the_same_page(run: Path, tmp_path: Path) -> None:
    pages = []
    for source in (run, run / "ablation.json"):
        page = tmp_path / "page.html"
        done = _run("analyze", source, "-o", page, "--json", tmp_path / "again.json")
        assert done.exit_code == 0, done.output
        assert "points lost:" in done.stdout and f"written: {page}" in done.stderr
        assert (tmp_path / "again.json").read_text() == to_json(RESULT)
        pages.append(page.read_text().replace(str(source), ""))
    assert pages[0] == pages[1] and "Why: what the loss is made of" in pages[0]


def test_json_goes_to_stdout_alone(run: Path, tmp_path: Path) -> None:
    done = _run("analyze", run, "-o", tmp_path / "page.html", "--json", "-")
    assert done.stdout == to_json(RESULT)
    assert _run("analyze", run, "-o", "-", "--format", "json").stdout == to_json(RESULT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--format", "markdown"), "written as html or json"),
        (("--where", "label = 'a'"), "--where: does not apply to an ablation"),
        (("--by", "region"), "--by: does not apply"),
        (("--baseline", "RUN"), "--baseline: does not apply"),
        (("RUN",), "analysed alone"),
    ],
)
def test_what_only_runs_have_is_refused(run: Path, options: tuple[str, ...], words: str) -> None:
    named = [str(run / "ablation.json") if each == "RUN" else each for each in options]
    done = _run("analyze", run, *named)
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)


def test_another_document_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind": "inspection", "schema_version": 1}')
    done = _run("analyze", tmp_path / "a.json", "-o", tmp_path / "page.html")
    assert isinstance(done.exception, UsageError)
    assert "is no document of `driftscope ablate --json`" in str(done.exception)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("words", [("check", "--require", "rounds > 1"), ("advise",), ("watch",)])
def test_other_commands_refuse_it(run: Path, words: tuple[str, ...]) -> None:
    done = _run(words[0], run, *words[1:])
    assert isinstance(done.exception, UsageError)
    assert "holds an ablation" in str(done.exception)


def test_it_is_listed_as_closed_and_is_never_the_latest_run(run: Path) -> None:
    entry = entry_of(run)
    assert (entry.state, entry.rounds, entry.problem) == (RunState.CLOSED, None, "")
    assert newest([run.parent]) is None
    listed = json.loads(_run("ls", run.parent, "--json").stdout)
    jsonschema.validate(listed, schema_of(RUNS))
    assert [each["kind"] for each in listed["runs"]] == ["ablation"]
