"""The table in the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.analyses import analysis_of, pair
from support.runs import Spec

from driftscope.pipeline import Analysis, Inputs, analyze, compare
from driftscope_reports.terminal import BADGES, render, show_comparison

GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"


def _text(analysis: Analysis) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(render(analysis))
    return out.getvalue()


def test_verdict_first_then_the_report_s_figures(tmp_path: Path) -> None:
    found = pair(tmp_path)
    text = _text(found)
    lost, verdict = text.split("\n")[:2]
    assert lost == "missing: eagle3: worker0-1 dropped 3 rows (queue full)", "before any figure"
    assert verdict.startswith(f"[{BADGES[found.screen.state]}] ")
    assert verdict.partition("] ")[2] in found.screen.headline
    for run in found.runs:
        assert f"{run.acceptance.mean_length:.2f}" in text
        assert f"{run.hidden.growth:.2f}×" in text


def test_the_findings_stand_before_the_table_and_fit_80_columns(tmp_path: Path) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(render(pair(tmp_path)))
    text = out.getvalue()
    assert max(map(len, text.split("\n"))) <= 80
    order = (
        "[",
        "per output token;",
        "Data",
        "What to do",
    )
    places = [text.index(each) for each in (*order, "rounds / requests")]
    assert places == sorted(places)


def test_a_run_that_was_cut_is_listed_by_segment(tmp_path: Path) -> None:
    text = _text(analysis_of(tmp_path, {"run": Spec(labels=("chat", "code"))}))
    assert "by label" in text
    for segment in ("chat", "code"):
        assert any(line.startswith(segment) and "[" in line for line in text.split("\n"))
    assert "by label" not in _text(analysis_of(tmp_path / "whole", {"run": Spec()}))


def test_a_label_is_neither_markup_nor_a_control_sequence(tmp_path: Path) -> None:
    text = _text(analysis_of(tmp_path, {"[red]a\x1b[31m\nb": Spec()}))
    assert "\x1b" not in text
    assert "[red]a" in text


def test_what_does_not_apply_is_a_dash(tmp_path: Path) -> None:
    text = _text(analysis_of(tmp_path, {"a": Spec(heads=0), "b": Spec(windowed=(0,))}))
    assert "nan" not in text


def test_each_action_is_advised_with_its_reason_and_stated_once(tmp_path: Path) -> None:
    found = analysis_of(tmp_path, {"run": Spec(conditional=(0.7, 0.3, 0.05, 0.05))})
    text = " ".join(_text(found).split())
    for action in found.screen.actions:
        assert action.short_advice.removesuffix(".") in text
        assert text.count(action.title) >= 1
        assert text.count(action.statement) <= 1, "it is stated once"


def test_what_to_do_has_its_option_on_a_line_of_its_own(tmp_path: Path) -> None:
    found = analysis_of(tmp_path, {"run": Spec(conditional=(0.0,) * 4)})
    option = next(each.option for each in found.screen.actions if each.option)
    screen = _text(found).partition("\n\n")[0]
    assert option in [line.strip() for line in screen.split("\n")]


def test_one_run_fits_a_screen_and_states_each_finding_once() -> None:
    """The gallery's server has seven findings, three of which ask for something."""
    made = analyze(Inputs(sources=[GALLERY / "server"], labels=["server"]))
    out = io.StringIO()
    Console(file=out, width=100).print(render(made))
    text = " ".join(out.getvalue().split())
    assert len(out.getvalue().splitlines()) <= 45
    for finding in made.findings:
        assert finding.title in text or finding == made.screen.lead
        assert text.count(finding.statement) <= 1


@pytest.mark.parametrize("everything", [False, True])
def test_a_comparison_fits_a_screen_and_what_differs_is_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    """Of runs with several labels, at 80 columns and 40 lines; what is left out is counted."""
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
