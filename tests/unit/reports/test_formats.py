"""The formats of a report, as files and in a notebook."""

from __future__ import annotations

import html
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from support.analyses import PAIR, analysis_of, pair
from support.runs import Spec, write_run

import driftscope
from driftscope.analysis.query.row_filters import Filter
from driftscope.cli.app import app
from driftscope.cli.options import Format
from driftscope.cli.run_reports import ReportFiles, command_line, write_reports
from driftscope.pipeline import Analysis, Inputs
from driftscope_reports.markdown import text, to_markdown

GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return pair(tmp_path_factory.mktemp("pair"))


def test_the_command_of_a_part_makes_the_same_report(
    tmp_path: Path,
) -> None:
    output, where = tmp_path / "part.html", "context > 300 and label = 'chat'"
    inputs = Inputs(
        sources=[GALLERY / "server"], labels=["server"], only=Filter(where=where, since="3s")
    )
    write_reports(inputs, ReportFiles(path=output), quiet=True)
    first = output.read_bytes()
    command = command_line(inputs, output)
    assert command in html.unescape(first.decode())
    output.unlink()
    with pytest.raises(SystemExit) as ended:
        app(shlex.split(command)[1:])
    assert not ended.value.code
    assert output.read_bytes() == first


def test_markdown_says_verdict_figures_and_findings(analysis: Analysis) -> None:
    made = to_markdown(analysis)
    lost, verdict = made.split("\n\n")[:2]
    assert lost.startswith("> Not everything was recorded:\n> - eagle3: worker0-1 dropped 3 rows")
    assert (
        verdict.startswith("### eagle3.1: it cannot be told whether acceptance is worse")
        and made.count("dropped 3 rows") == 1
    )
    assert "| acceptance length | 2.46" in made
    for finding in analysis.findings:
        assert text(finding.statement) in made
    assert "> - eagle3: worker0-1 dropped 3 rows" in made


def test_hostile_names_are_text_in_markdown(tmp_path: Path) -> None:
    name = "<img src=x> | @everyone [a](http://evil) `x` **b**\n# h"
    made = to_markdown(analysis_of(tmp_path, {name: Spec(labels=(name,))}))
    assert not re.search(r"(?<!\\)[<>\[\]`#]", made.removeprefix("###"))
    assert "http://" not in made
    assert "@everyone" not in made
    rows = [line for line in made.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows[:5]}) == 1


def test_an_option_is_code_to_paste_in_markdown(analysis: Analysis) -> None:
    option = """--speculative-config '{"method": "eagle3", "model": "a_`b``"}'"""
    first, *others = analysis.screen.actions
    screen = replace(analysis.screen, actions=(replace(first, option=option), *others))
    made = to_markdown(replace(analysis, screen=screen))
    line = next(line for line in made.split("\n") if line.startswith("- **Option**: "))
    assert line == f"- **Option**: ``` {option} ```", "nothing in it is escaped or ends the code"


@pytest.mark.parametrize("form", list(Format))
def test_the_command_writes_each_format(tmp_path: Path, form: Format) -> None:
    run = write_run(tmp_path / "run", PAIR["eagle3.1"])
    files = ReportFiles(path=tmp_path / "out", format=form)
    write_reports(Inputs(sources=[run], labels=["run"]), files, quiet=True)
    signs = {"html": b"<!DOCTYPE", "json": b"{", "markdown": b"### "}
    assert (tmp_path / "out").read_bytes().startswith(signs[form])


@pytest.mark.slow
def test_load_gives_frames_figures_and_a_report(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, spec) for name, spec in PAIR.items()]
    run = driftscope.load(*paths)
    assert set(run.drafts["run"]) == set(PAIR)
    assert len(run.rounds) == len(run.rounds.query("drafted > 0")) + 2
    assert len(run.requests) == 80
    assert list(run.by_depth.query("run == 'eagle3'")["depth"]) == [1, 2, 3, 4]
    assert "hidden_state_grows" in set(run.findings["id"])
    figure = run.figures["acceptance-marginal"]
    assert [len(trace.y) for trace in figure.data] == [4, 4]
    assert "eagle3.1: it cannot be told whether acceptance is worse than eagle3's" in repr(run)
    held = driftscope.load(paths[0], baseline=paths[1])
    assert "The baseline takes" in held.report().html
    shown = run.report()._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    saved = run.report().save(tmp_path / "r.html")
    assert saved.read_text(encoding="utf-8") == run.report().html
