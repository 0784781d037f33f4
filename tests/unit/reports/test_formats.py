"""The formats of a report: files, a notebook, the terminal, and figures as plotly draws them."""

from __future__ import annotations

import html
import io
import json
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
from rich.console import Console
from support.analyses import PAIR, analysis_of
from support.runs import Spec, write_run

import driftscope
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.statistics.intervals import Interval
from driftscope.cli.app import app
from driftscope.cli.options import Format
from driftscope.cli.run_reports import command_line, write_reports
from driftscope.errors import UsageError
from driftscope.pipeline import Analysis, Inputs, compare
from driftscope_reports.charts import (
    Axis,
    Mark,
    Unit,
    area,
    bars,
    expectation,
    figure,
    has_values,
    line,
    plain,
    points,
)
from driftscope_reports.markdown import sentences, to_markdown
from driftscope_reports.model import number_rows
from driftscope_reports.page import asset, colours, with_code
from driftscope_reports.terminal import render, show_comparison

GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"


def test_the_command_of_a_part_makes_the_same_report(tmp_path: Path) -> None:
    output, only = (
        tmp_path / "part.html",
        Filter(where="context > 300 and label = 'chat'", since="3s"),
    )
    inputs = Inputs(sources=[GALLERY / "server"], labels=["server"], only=only)
    write_reports(inputs, output, quiet=True)
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
    assert verdict.startswith("### eagle3.1: it cannot be told whether acceptance is worse")
    assert "| acceptance length | 2.46" in made and made.count("dropped 3 rows") == 1
    for finding in analysis.findings:
        assert sentences(finding.statement) in made


def test_hostile_names_are_text_in_markdown(tmp_path: Path) -> None:
    name = "<img src=x> | @everyone [a](http://evil) `x` **b**\n# h"
    made = to_markdown(analysis_of(tmp_path, {name: Spec(labels=(name,))}))
    plain = re.sub(r"(?<![\\`])(`+) .*? \1(?!`)", "", made)  # nothing in code is markup
    assert not re.search(r"(?<!\\)[<>\[\]`#]", plain.removeprefix("###"))
    assert "http://" not in plain and "@everyone" not in plain
    rows = [line for line in made.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows[:5]}) == 1


@pytest.mark.parametrize(
    ("raw", "made"),
    [
        ("run `driftscope ls a_b`: then <b>", r"run ` driftscope ls a_b `: then \<b\>"),
        ("a `left over", r"a \`left over"),
        ("`x`", "` x `"),
    ],
)
def test_commands_in_sentences_are_code_to_paste_in_markdown(raw: str, made: str) -> None:
    assert sentences(raw) == made


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
    write_reports(Inputs(sources=[run], labels=["run"]), tmp_path / "out", form, quiet=True)
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


def test_load_and_check_take_one_text_and_refuse_what_the_commands_refuse(tmp_path: Path) -> None:
    run = CHECKOUT / "reports" / "gallery" / "traces" / "smollm2-eagle3"
    (tmp_path / "a").mkdir()
    shutil.copytree(run, tmp_path / "a" / run.name)
    both = driftscope.load(run, tmp_path / "a" / run.name)
    assert set(both.by_depth["run"]) == {f"traces/{run.name}", f"a/{run.name}"}
    for arguments, labels in (((), None), ((run,), ["a", "b"])):
        with pytest.raises(UsageError, match="give"):
            driftscope.load(*arguments, labels=labels)
    driftscope.check(run, fail_on="high")
    with pytest.raises(AssertionError, match="sink_lost"):
        driftscope.check(run, fail_on="sink_lost")


def test_a_command_in_a_sentence_is_code() -> None:
    assert with_code("run `ls <a>`, & wait") == "run <code>ls &lt;a&gt;</code>, &amp; wait"
    assert with_code("`x --a-b c`") == "<code>x <span class=unbroken>--a-b</span> c</code>"


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


BETWEEN = [Interval(low=0.7, high=0.9), Interval(low=0.4, high=0.6), None]
MASSES = figure(
    [
        area("own", [0.0, 0.25, 0.5], colour="class-self", pattern="/"),
        area("rest", [1.0, 0.75, 0.5], colour="class-prompt", pattern="."),
        expectation("expected", [0.0, 0.1, 0.2]),
    ],
    x_title="depth",
    y_title="share",
    unit=Unit.SHARE,
)
RATES = figure(
    [line("<a>", [0.8, 0.5, None], intervals=BETWEEN), line("b", [0.9, 0.7], run=1)],
    x_title="depth",
    y_title="rate",
    unit=Unit.SHARE,
    marks=[Mark(x=2, text="<here>")],
)
CHANGES = figure(
    [
        bars("worse", [1, 2], [None, -0.2], intervals=[None, Interval(low=-0.3, high=-0.1)]),
        bars("better", [1, 2], [0.1, None], colours="good", pattern="x"),
    ],
    x_title="depth",
    y_title="difference",
    unit=Unit.SHARE,
    stacked=True,
    level=0.0,
    from_zero=False,
)
FIGURES = {"masses": MASSES, "rates": RATES, "changes": CHANGES}


def test_every_colour_is_in_both_palettes_and_a_notebook_gets_the_light_one() -> None:
    css = asset("report.css")
    dark = re.findall(r"--([\w-]+): #", css.partition("@media")[2].partition("* {")[0])
    assert list(colours()) == dark
    for made in FIGURES.values():
        text = json.dumps(plain(made))
        assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(dark)
        assert "var(" not in json.dumps(plain(made, colours()))


def test_what_is_missing_is_a_gap_and_a_dash() -> None:
    drawn = plain(RATES)["data"][0]
    assert drawn["y"] == [0.8, 0.5, None]
    assert drawn["error_y"]["array"] == [0.1, 0.1, None]
    # A depth at which every series has a gap says nothing.
    rows = [["1", "0.800 (0.700 to 0.900)", "0.900"], ["2", "0.500 (0.400 to 0.600)", "0.700"]]
    assert number_rows(RATES)[:2] == (["depth", "<a>", "b"], rows)
    assert "NaN" not in json.dumps([plain(made) for made in FIGURES.values()])


def test_names_are_escaped_for_plotly_and_clipped() -> None:
    made = plain(RATES)
    assert made["data"][0]["name"] == "&lt;a&gt;"
    assert made["layout"]["annotations"][0]["text"] == "&lt;here&gt;"
    long = plain(figure([line("n" * 90, [1.0])], x_title="x", y_title="y"))
    assert len(long["data"][0]["name"]) == 28


def test_axes_show_every_value_and_do_not_let_wide_intervals_hide_it() -> None:
    low, high = CHANGES.layout.yaxis.range
    assert low < -0.3 and high > 0.1
    assert MASSES.layout.yaxis.range == RATES.layout.yaxis.range == (0.0, 1.02)
    wide = line("a", [1.0, 2.0], intervals=[Interval(low=0.0, high=90.0)] * 2)
    assert figure([wide], x_title="x", y_title="y").layout.yaxis.range[1] < 4
    assert all(made.layout.xaxis.range[0] == 0.5 for made in FIGURES.values())


def test_many_values_are_rows_of_a_table_and_each_point_has_its_note() -> None:
    xs = [float(x) for x in range(30)]
    many = figure([points("a", xs, xs)], x_title="K", y_title="ms", axis=Axis.NUMBER, unit=Unit.MS)
    head, rows, words = number_rows(many)
    assert (head, words) == (["K", "a"], 1)
    assert rows[1] == ["1", "1.00"]
    noted = [points(name, [1.0], [2.0], notes=["of 3"]) for name in "ab"]
    noted += [points("c", [4.0], [5.0])]
    head, rows, words = number_rows(figure(noted, x_title="K", y_title="y", axis=Axis.NUMBER))
    assert (head, words) == (["run", "about", "K", "y"], 2)
    assert rows[0] == ["a", "of 3", "1", "2.000"]
    other_x = [points("a", [1.0], [2.0]), points("b", [4.0], [5.0])]
    head, *_ = number_rows(figure(other_x, x_title="K", y_title="y", axis=Axis.NUMBER))
    assert head == ["run", "K", "y"]


def test_a_picture_has_values_only_if_a_run_has_one() -> None:
    """A run that others are compared with is not listed among them."""
    alone = expectation("baseline", [1.0, 1.0])
    gaps = line("run", [None, float("nan")])
    assert not has_values(figure([alone, gaps], x_title="K", y_title="ms"))
    assert has_values(figure([alone, line("run", [None, 2.0])], x_title="K", y_title="ms"))


def _lines(analysis: Analysis) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=50).print(render(analysis), crop=False)
    return [line.strip() for line in out.getvalue().splitlines()]


def test_a_label_is_neither_markup_nor_a_control_sequence(tmp_path: Path) -> None:
    text = "".join(_lines(analysis_of(tmp_path, {"[red]a\x1b[31m\nb": Spec()})))
    assert "\x1b" not in text and "[red]a" in text


def test_a_command_and_an_option_are_on_a_line_of_their_own_that_is_not_broken(
    tmp_path: Path,
) -> None:
    lines = _lines(analysis_of(tmp_path, {"run": Spec(conditional=(0.7, 0.3, 0.05, 0.05))}))
    (command,) = (shlex.split(line) for line in lines if line.startswith("driftscope pays "))
    config = command[command.index("--speculative-config") + 1]
    assert json.loads(config)["method"] == "eagle3"
    assert not any("`" in line for line in lines)
    found = analysis_of(tmp_path / "b", {"dead": Spec(conditional=(0.0,) * 4)})
    option = next(action.option for action in found.screen.actions if action.option)
    lines = _lines(found)
    assert option in lines[: lines.index("")]


@pytest.mark.parametrize("everything", [False, True])
def test_a_comparison_fits_a_screen_and_what_differs_is_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    """Runs with several labels fit 80 columns and 40 lines; what is left out is counted."""
    monkeypatch.delenv("COLUMNS", raising=False)
    paths = [GALLERY / name for name in ("drifting", "server")]
    compared = compare(*paths, ("a drafter that drifts", "server"))
    show_comparison(compared, everything=everything)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert "…" not in "".join(lines)
    marks = [line.split()[-1] == "differs" for line in lines if " to " in line and "(" in line]
    assert marks == sorted(marks, reverse=True)
    shown = sum("accepted to depth" in line or ": to depth" in line for line in lines)
    depths = [row for row in compared.differences if row.depth]
    assert (shown == len(depths)) == everything
    assert lines[-1].endswith("--all shows them.") != everything
