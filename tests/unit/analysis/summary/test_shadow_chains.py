"""Chains under live interventions in a recorded run, in the summary and in each report."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from rich.console import Console
from support.runs import Spec, rows, write_rows, write_run

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.json_report.report import to_json
from driftscope.pipeline import Filter, Inputs, analyze, summarise
from driftscope.trace.format.records import ShadowRow, VerifyRow
from driftscope.trace.read.reader import read_trace
from driftscope.vocabulary import HIDE_CHAIN, PIN_SIZE
from driftscope_reports.html.document import to_html
from driftscope_reports.html.embedded_data import read_report
from driftscope_reports.terminal.run_table import render

SPEC = Spec(requests=12, rounds=6)
LABELLED = replace(SPEC, labels=("a", "b"))


def shadows(spec: Spec) -> Iterator[ShadowRow]:
    """Yield chains of every round: `pin-size` agrees as far as the served one and `hide-chain`
    nowhere; and a chain at a position that no round verified."""
    for row in rows(spec):
        if isinstance(row, VerifyRow) and row.drafted:
            for intervention, agreed in ((PIN_SIZE, row.accepted), (HIDE_CHAIN, 0)):
                yield ShadowRow(
                    step=row.step,
                    time_s=row.time_s,
                    request=row.request,
                    position=row.position,
                    intervention=intervention,
                    k=spec.k,
                    known=spec.k,
                    agreed=agreed,
                    served_agreed=row.accepted,
                )
    yield ShadowRow(
        step=1,
        time_s=0.0,
        request="req-0",
        position=10**6,
        intervention=PIN_SIZE,
        k=spec.k,
        known=spec.k,
        agreed=0,
        served_agreed=0,
    )


def recorded(folder: Path, spec: Spec = SPEC, *, closed: bool = True) -> Path:
    run = write_run(folder / "run", spec)
    write_rows(run, "worker0-9", shadows(spec), closed=closed)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return recorded(tmp_path)


def expect(summary: RunSummary) -> None:
    pinned, hidden = summary.live_shadow
    served = summary.acceptance
    assert (pinned.intervention, hidden.intervention) == (PIN_SIZE, HIDE_CHAIN)
    assert pinned.chains == hidden.chains == summary.rounds
    assert pinned.served.length == pytest.approx(served.mean_length - 1)
    assert pinned.served.reached == pytest.approx(served.marginal)
    assert pinned.difference == 0.0
    assert hidden.difference == pytest.approx(1 - served.mean_length)
    assert hidden.interval is not None
    assert hidden.interval.high < 0
    assert pinned.clusters == summary.clusters


def test_chains_are_compared_with_the_served_ones_of_their_rounds(run: Path) -> None:
    expect(summarise(run, "run"))


def test_a_trace_in_memory_and_a_killed_run_say_the_same(tmp_path: Path, run: Path) -> None:
    expect(summarise(read_trace(run), "run"))
    expect(summarise(recorded(tmp_path / "killed", closed=False), "run"))


def test_a_run_without_shadow_rounds_has_none(tmp_path: Path) -> None:
    assert summarise(write_run(tmp_path / "run", SPEC), "run").live_shadow == ()


def test_the_terminal_and_the_json_report_have_them(run: Path) -> None:
    analysis = analyze(Inputs(sources=[run], labels=["run"]))
    out = io.StringIO()
    Console(file=out, width=200).print(render(analysis))
    (summary,) = analysis.runs
    for found in summary.live_shadow:
        assert found.words in out.getvalue()
    (plain,) = json.loads(to_json(analysis))["runs"]
    hidden = plain["live_shadow"][1]
    assert hidden["intervention"] == HIDE_CHAIN
    assert hidden["difference_interval"]["high"] < 0
    assert hidden["shadow"] == {"length": 0.0, "reached": [0.0] * SPEC.k, "whole": 0}


def test_conditions_select_the_chains_with_their_rounds(tmp_path: Path) -> None:
    run = recorded(tmp_path, LABELLED)
    whole = summarise(run, "run")
    some = summarise(run, "run", only=Filter(where="label = 'a'"))
    assert some.rounds < whole.rounds
    expect(some)


def test_the_html_report_has_them_and_can_be_read_back(tmp_path: Path, run: Path) -> None:
    analysis = analyze(Inputs(sources=[run], labels=["run"]))
    path = tmp_path / "report.html"
    path.write_text(to_html(analysis), encoding="utf-8")
    (summary,), (again,) = analysis.runs, read_report(path).runs
    assert again.live_shadow == summary.live_shadow
    for found in summary.live_shadow:
        assert escape(found.words[1:]) in path.read_text(encoding="utf-8")
