"""The page of an inspection shows errors first, figures and repairs, and asks for nothing."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser
from support.checkpoints import TARGET, changed
from support.chromium import assert_drawn_alone
from support.inspections import broken

from driftscope.inspect.inspection import inspect_files
from driftscope.inspect.trial.result import NotApplicable, TriedRendering
from driftscope_reports.inspection_page import to_html

HOSTILE = "</script><img src=x onerror=boom()>"
FIGURES = re.compile(r'<figure id="([\w-]+)"')


def _words(page: str) -> str:
    """Return the page's text without scripts, styles and tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_errors_come_first_and_name_the_line_to_change(tmp_path: Path) -> None:
    page = _words(to_html(broken(tmp_path)))
    assert "▲ error broken: 1 error, 1 warning, 1 note" in page
    assert page.index("▲ error with") < page.index("◆ warning") < page.index("ℹ note")
    assert 'Change: "norm_output": true' in page


def test_every_repair_is_in_the_table_with_its_gain(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    page = _words(to_html(inspection))
    assert inspection.trial is not None
    assert '2 changes, one at a time. This one helps: "norm_output": true.' in page
    for each in inspection.trial.tried:
        assert f"{each.acceptance.mean_length:.2f} {each.gain.difference:+.2f}" in page


def test_figures_by_depth_are_drawn_and_tabled(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    page = to_html(inspection)
    assert inspection.trial is not None
    assert FIGURES.findall(page) == ["masses", "acceptance-marginal", "hidden", "confidence"]
    assert f"{100 * inspection.trial.acceptance.marginal[0]:.0f}%" in _words(page)


def test_each_result_is_a_card_and_none_is_told_with_the_number_of_checks(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    page = to_html(inspection)
    assert page.count("<article") == len(inspection.results)
    assert '<code class="option" tabindex="0">&#34;norm_output&#34;: true</code>' in page
    clean = to_html(replace(inspection, results=()))
    assert f"Nothing, in {inspection.checks} checks." in clean


def test_renderings_and_what_could_not_be_tried_are_listed(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    assert inspection.trial is not None
    first = inspection.trial.tried[0]
    rendered = TriedRendering(
        rendering=replace(first.repair, change="no first token"),
        acceptance=first.acceptance,
        gain=first.gain,
        prompts=first.prompts,
        surer=0.1,
        surer_interval=None,
    )
    left_out = NotApplicable(id="drafters_template", reason="none was saved")
    made = replace(inspection.trial, renderings=(rendered,), not_applicable=(left_out,))
    page = _words(to_html(replace(inspection, trial=made)))
    assert "no first token" in page
    assert "Not tried: drafters_template: none was saved." in page


def test_a_drafter_that_was_not_run_has_no_figures(tmp_path: Path) -> None:
    page = to_html(inspect_files(str(changed(tmp_path / "a")), str(TARGET)))
    assert "✓ No error, no warning" in page
    assert not FIGURES.findall(page)


def test_names_and_words_of_a_checkpoint_are_escaped(tmp_path: Path) -> None:
    inspection = replace(broken(tmp_path, mistake=HOSTILE), drafter=HOSTILE, target=HOSTILE)
    page = to_html(inspection)
    assert HOSTILE not in page
    assert "<img" not in page


def test_the_same_inspection_gives_the_same_bytes(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    assert to_html(inspection, command="x") == to_html(inspection, command="x")


def test_a_browser_draws_every_picture_and_asks_for_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(to_html(broken(tmp_path)), encoding="utf-8")
    assert_drawn_alone(browser, path)
