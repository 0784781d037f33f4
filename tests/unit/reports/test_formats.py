"""The other formats, and a report read back."""

from __future__ import annotations

import html
import json
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
from driftscope.cli.shared.report_format import Format
from driftscope.cli.shared.report_output import ReportFiles, write_reports
from driftscope.cli.shared.run_choice import RunChoice
from driftscope.errors import DamagedTraceError, SchemaVersionError
from driftscope.pipeline import Analysis, conclude
from driftscope_reports.formats import write
from driftscope_reports.html.document import pictures, to_html
from driftscope_reports.html.embedded_data import read_report
from driftscope_reports.html.record_codec import from_plain, to_plain
from driftscope_reports.markdown import text, to_markdown
from driftscope_reports.png import to_png, to_svg

GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def report(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(to_html(analysis), encoding="utf-8")
    return path


def test_a_report_read_back_is_the_same_analysis(analysis: Analysis, report: Path) -> None:
    back = read_report(report)
    assert back == analysis
    assert to_html(back) == to_html(analysis)


def test_what_is_read_back_can_be_concluded_again(analysis: Analysis, report: Path) -> None:
    back = read_report(report)
    again = conclude(back.runs, back.senders)
    assert again.findings == analysis.findings
    assert again.verdict == analysis.verdict


def test_numbers_that_are_none_survive(tmp_path: Path) -> None:
    odd = analysis_of(tmp_path, {"odd": Spec(heads=0), "windowed": Spec(windowed=(0,))})
    assert to_plain(from_plain(Analysis, json.loads(json.dumps(to_plain(odd))))) == to_plain(odd)


def _written(
    paths: list[Path], labels: list[str], output: Path, form: Format = Format.HTML
) -> Analysis:
    choice = RunChoice(paths=tuple(paths), labels=tuple(labels))
    return write_reports(choice, ReportFiles(path=output, format=form), quiet=True)


def test_the_command_reads_a_report_and_compares_it_later(
    analysis: Analysis, report: Path, tmp_path: Path
) -> None:
    again = _written([report], ["x"], tmp_path / "again.html")
    assert again == analysis
    run = write_run(tmp_path / "new", Spec(seed=11))
    both = _written([report, run], ["old", "new"], tmp_path / "both.html")
    assert [r.label for r in both.runs] == ["old (eagle3)", "old (eagle3.1)", "new"]
    assert (
        "of new differ clearly from those of old (eagle3)" in (tmp_path / "both.html").read_text()
    )


def test_the_command_of_a_part_makes_the_same_report(
    tmp_path: Path,
) -> None:
    output, where = tmp_path / "part.html", "context > 300 and label = 'chat'"
    choice = RunChoice(
        paths=(GALLERY / "server",), labels=("server",), only=Filter(where=where, since="3s")
    )
    write_reports(choice, ReportFiles(path=output), quiet=True)
    first = output.read_bytes()
    command = choice.command_line(output)
    assert html.escape(command) in first.decode()
    output.unlink()
    with pytest.raises(SystemExit) as ended:
        app(shlex.split(command)[1:])
    assert not ended.value.code
    assert output.read_bytes() == first


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ("<html>hello</html>", DamagedTraceError, "not a driftscope report"),
        ('{"version":99}', SchemaVersionError, "upgrade driftscope"),
        ('{"version":1}', DamagedTraceError, "not in the form that this driftscope writes"),
        ('{"version":1,"analysis":{"runs":3}}', DamagedTraceError, "runs"),
        ('{"version":1,"analysis":{"runs":[{}]}}', DamagedTraceError, "create the report again"),
        ("[1", DamagedTraceError, "not a readable report"),
        ("[" * 100_000, DamagedTraceError, "not a readable report"),
    ],
)
def test_what_is_no_report_is_refused(
    tmp_path: Path, content: str, error: type[Exception], words: str
) -> None:
    path = tmp_path / "x.html"
    if not content.startswith("<"):
        content = f'<script type="application/json" id="analysis">{content}</script>'
    path.write_text(content)
    with pytest.raises(error, match=words):
        read_report(path)


def test_markdown_says_verdict_figures_and_findings(analysis: Analysis) -> None:
    made = to_markdown(analysis)
    lost, verdict = made.split("\n\n")[:2]
    assert lost.startswith("> Not everything was recorded:\n> - eagle3: worker0-1 dropped 3 rows")
    assert (
        verdict.startswith(r"### eagle3.1: acceptance is better than eagle3's")
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
    assert analysis.screen is not None
    first, *others = analysis.screen.actions
    screen = replace(analysis.screen, actions=(replace(first, option=option), *others))
    made = to_markdown(replace(analysis, screen=screen))
    line = next(line for line in made.split("\n") if line.startswith("- **Option**: "))
    assert line == f"- **Option**: ``` {option} ```", "nothing in it is escaped or ends the code"


def test_png_gives_every_picture(analysis: Analysis, tmp_path: Path) -> None:
    short = conclude(analysis.runs[:1])
    written = write(short, "png", tmp_path / "pictures")
    assert sorted(p.name for p in written) == sorted(f"{p.id}.png" for p in pictures(short))
    for path in written:
        assert path.read_bytes().startswith(PNG)
        assert len(path.read_bytes()) > 3000
    assert to_png(pictures(short)[0]) == to_png(pictures(short)[0])
    assert "var(--" not in to_svg(pictures(short)[0])


@pytest.mark.parametrize("form", list(Format))
def test_the_command_writes_each_format(tmp_path: Path, form: Format) -> None:
    run = write_run(tmp_path / "run", PAIR["eagle3.1"])
    _written([run], ["run"], tmp_path / "out", form)
    first = min((tmp_path / "out").iterdir()) if form == "png" else tmp_path / "out"
    signs = {"html": b"<!DOCTYPE", "json": b"{", "markdown": b"### ", "png": PNG}
    assert first.read_bytes().startswith(signs[form])


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
    assert "eagle3.1: acceptance is better than eagle3's" in repr(run)
    held = driftscope.load(paths[0], baseline=paths[1])
    assert "The baseline takes" in held.report().html
    shown = run.report()._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    saved = run.report().save(tmp_path / "r.html")
    back = driftscope.load(saved)
    assert back.verdict == run.verdict
    assert back.drafts.empty
