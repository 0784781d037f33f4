"""The formats of a report, as files and in a notebook."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support.analyses import PAIR, analysis_of, pair
from support.runs import Spec, write_run

import driftscope
from driftscope.analysis.query.row_filters import Filter
from driftscope.cli.app import app
from driftscope.cli.options import Format
from driftscope.cli.run_reports import ReportFiles, command_line, write_reports
from driftscope.pipeline import Analysis, Inputs
from driftscope_reports.markdown import text, to_markdown
from driftscope_reports.page import Content, framed, part, policy, with_code

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


def _page(title: str = "Title") -> str:
    content = Content(
        title=title,
        skip="Skip",
        contents=[("a", "First")],
        main=[part("paragraph", "words")],
        figures={},
    )
    return framed(content)


def test_the_page_names_no_address() -> None:
    page = re.sub(r"<(script|style)\b.*?</\1>", "", _page(), flags=re.DOTALL)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"#a"}


def test_the_policy_allows_the_scripts_of_the_page_only() -> None:
    allowed = policy("p {}", ["one()"])
    assert "default-src 'none'" in allowed
    assert allowed != policy("p {}", ["two()"])
    assert "http" not in allowed


def test_the_title_is_escaped() -> None:
    assert "<title>a &lt;b&gt;</title>" in _page("a <b>")


def test_a_part_escapes_what_is_put_into_it() -> None:
    assert part("paragraph", "<b>", "x") == '<p class="x">&lt;b&gt;</p>'
    assert part("paragraph", part("code", "<b>")) == "<p><code>&lt;b&gt;</code></p>"


def test_a_command_in_a_sentence_is_code() -> None:
    assert with_code("run `ls <a>`, & wait") == "run <code>ls &lt;a&gt;</code>, &amp; wait"


CHECKOUT = Path(__file__).parents[3]


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_the_example_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "examples").mkdir()
    shutil.copytree(CHECKOUT / "reports/gallery/traces", tmp_path / "reports/gallery/traces")
    book = nbformat.read(CHECKOUT / "examples/notebook.ipynb", as_version=4)
    NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(tmp_path / "examples")}}
    ).execute()
    said = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not [output for output in said if output["output_type"] in ("error", "stream")]
    shown = book.cells[-1]["outputs"][0]["data"]
    assert shown["text/html"].startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert shown["text/plain"].startswith("<driftscope report: ")
    assert (tmp_path / "examples" / "report.html").stat().st_size > 800_000
