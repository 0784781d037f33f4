"""A drafter that accepts nothing is called dead, surely, and first."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from support.runs import Spec, write_run
from support.simulate import Truth, simulate
from typer.testing import CliRunner

from driftscope.analysis.advice import NO_SPECULATION
from driftscope.analysis.statistics.intervals import exact_interval
from driftscope.cli.app import app
from driftscope.findings.causes import SURE_ROUNDS
from driftscope.findings.finding import Finding, Trust
from driftscope.pipeline import Analysis, conclude, summarise
from driftscope.trace.reader import read_trace
from driftscope_reports.html.document import to_html
from driftscope_reports.markdown import to_markdown
from driftscope_reports.terminal.run_table import render

DEAD = (0.0, 0.0, 0.0, 0.0)
NEARLY = (1e-6, 0.5, 0.5, 0.5)


def _analysed(folder: Path, spec: Spec) -> Analysis:
    return conclude([summarise(read_trace(write_run(folder / "run", spec)), "run")])


def _dead(found: Analysis) -> Finding:
    (finding,) = (f for f in found.findings if f.id == "nothing_accepted")
    return finding


def test_rounds_of_few_prompts_are_not_sure(tmp_path: Path) -> None:
    """They may all be unusual, however often they are asked."""
    truth = Truth(k=4, requests=40, rounds=20, conditional=NEARLY, repeats=20)
    run = summarise(read_trace(simulate(tmp_path / "run", truth)), "run")
    assert (run.requests, run.clusters, run.noun) == (40, 2, "prompt")
    (dead,) = (f for f in conclude([run]).findings if f.id == "nothing_accepted")
    assert dead.confidence is Trust.MEDIUM
    assert dead.because.endswith("certain only from 5 prompts on")


def test_none_of_so_many_rounds_is_sure(tmp_path: Path) -> None:
    found = _analysed(tmp_path, Spec(conditional=DEAD, requests=10, rounds=SURE_ROUNDS // 10))
    dead = _dead(found)
    assert dead.confidence is Trust.HIGH
    assert dead.evidence["marginal_first_high"] == pytest.approx(3 / SURE_ROUNDS, rel=0.02)
    assert "none of 300 rounds accepts a token: the rate is below 1.0%" in dead.statement
    assert found.findings[0] is dead
    assert dead.option == NO_SPECULATION
    assert dead.advice.startswith("Turn speculation off now")
    assert found.verdict[0] == (
        "Nothing is accepted: speculation costs time and gives nothing (none of 300 rounds "
        "accepts a token: the rate is below 1.0%)."
    )


@pytest.mark.parametrize(
    ("requests", "rounds", "trust"),
    [(10, 5, Trust.LOW), (10, 10, Trust.MEDIUM), (3, 200, Trust.MEDIUM)],
)
def test_fewer_rounds_or_requests_are_not(
    tmp_path: Path, requests: int, rounds: int, trust: Trust
) -> None:
    spec = Spec(conditional=DEAD, requests=requests, rounds=rounds)
    assert _dead(_analysed(tmp_path, spec)).confidence is trust


def test_a_dead_run_beside_a_healthy_one_is_named_in_the_first_sentence(tmp_path: Path) -> None:
    runs = [
        summarise(read_trace(write_run(tmp_path / name, spec)), name)
        for name, spec in (("good", Spec(rounds=30)), ("bad", Spec(conditional=DEAD, rounds=30)))
    ]
    first = conclude(runs).verdict[0]
    assert "bad: nothing is accepted: speculation costs time and gives nothing" in first


def test_advise_says_none(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run", Spec(conditional=DEAD, rounds=30)))
    said = CliRunner().invoke(app, ["advise", run])
    assert said.exit_code == 0, said.output
    assert said.output.startswith("run: K = 0")
    assert NO_SPECULATION in said.output
    printed = CliRunner().invoke(app, ["advise", run, "--json"])
    assert json.loads(printed.output)["command"] == NO_SPECULATION


def test_advise_needs_no_step_times_for_that(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run", Spec(conditional=DEAD, rounds=2, requests=200)))
    for segment in Path(run).glob("step-*"):
        segment.unlink()
    said = CliRunner().invoke(app, ["advise", run])
    assert said.exit_code == 0, said.output
    assert said.output.startswith(f"run: K = 0: {NO_SPECULATION}")


def test_every_form_of_the_report_lists_the_causes_in_their_order(tmp_path: Path) -> None:
    found = _analysed(tmp_path, Spec(conditional=DEAD, rounds=30))
    causes = [each.cause for each in _dead(found).causes]
    assert len(causes) > 5
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(render(found))
    for text in (console.export_text(), to_markdown(found), to_html(found)):
        places = [text.index(cause.split(" (")[0]) for cause in causes]
        assert places == sorted(places)
    for each in (*_dead(found).causes, *_dead(found).ruled_out):
        assert each.check
        assert each.cause.split(" (")[0] in to_html(found)


def test_it_is_what_the_first_screen_says_to_do(tmp_path: Path) -> None:
    page = to_html(_analysed(tmp_path, Spec(conditional=DEAD, rounds=30, growth=3.0)))
    card = page[page.index('id="do-heading"') :][:400]
    assert "Turn speculation off now: it costs time and gives nothing." in card


def test_exact_intervals_by_hand() -> None:
    """0 of n: 1 - 0.05^(1/n); 5 of 10: the textbook's 0.187 to 0.813."""
    assert exact_interval(0, 1504).high == pytest.approx(1 - 0.05 ** (1 / 1504))
    assert exact_interval(0, 1504).high < 0.002
    assert exact_interval(20, 20).low == pytest.approx(0.05 ** (1 / 20))
    half = exact_interval(5, 10)
    assert (half.low, half.high) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    with pytest.raises(ValueError, match="no share"):
        exact_interval(1, 0)


def test_no_other_k_is_advised(tmp_path: Path) -> None:
    found = _analysed(tmp_path, Spec(conditional=DEAD, rounds=30))
    assert not {f.id for f in found.findings} & {"smaller_k", "larger_k", "k_by_batch_size"}
