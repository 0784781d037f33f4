"""No sentence of a conclusion appears twice in one output."""

from __future__ import annotations

import io
import re
from html import unescape

import pytest
from rich.console import Console
from support.analyses import analysis_of
from support.runs import Spec

from driftscope.pipeline import Analysis
from driftscope_reports.html import to_html
from driftscope_reports.markdown import to_markdown
from driftscope_reports.terminal import render

RUNS = {
    "old": Spec(conditional=(0.7, 0.3, 0.05, 0.05), labels=("chat", "code")),
    "new": Spec(
        conditional=(0.8,) * 4, growth=1.0, sink=(0.46, 0.08), notes=("fc_norm is missing",)
    ),
}


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analysis_of(tmp_path_factory.mktemp("runs"), RUNS)


def _terminal(analysis: Analysis) -> str:
    console = Console(width=100_000, record=True, file=io.StringIO())
    console.print(render(analysis))
    return console.export_text()


def _page(analysis: Analysis) -> str:
    return unescape(re.sub(r"<[^>]+>", "", to_html(analysis)))


def _markdown(analysis: Analysis) -> str:
    return to_markdown(analysis).replace("\\", "")


@pytest.mark.parametrize("output", [_terminal, _page, _markdown])
def test_every_finding_answer_and_note_is_stated_once(analysis: Analysis, output: object) -> None:
    assert callable(output)
    text = output(analysis).lower()
    told = [*analysis.findings, *analysis.answers]
    told += analysis.notes if output is not _terminal else []
    for each in {finding.statement: finding for finding in told}.values():
        if each.severity is not None and output is _terminal:
            continue  # the first screen tells it, or its title alone
        if each == analysis.screen.lead and output is _page:
            continue  # its figures in brackets stand below the headline
        assert text.count(each.statement.lower()) == 1, each.id


@pytest.mark.parametrize("output", [_terminal, _page, _markdown])
def test_every_advice_is_given_once(analysis: Analysis, output: object) -> None:
    assert callable(output)
    text = output(analysis)
    for each in {finding.advice: finding for finding in analysis.screen.actions}.values():
        words = each.short_advice.replace("`", "") if output is _page else each.short_advice
        assert text.count(words) == 1, each.id
