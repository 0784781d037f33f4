"""The pages of an inspection and of ablations."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from support.chromium import assert_drawn_alone
from support.constructed_drafter import constructed_ablation
from support.inspections import broken

from driftscope.ablate.result import conclusion_of
from driftscope.inspect.trial.result import NotApplicable
from driftscope_reports.checkpoint_pages import ablation_html, inspection_html

HOSTILE = "</script><img src=x onerror=boom()>"
FIGURES = re.compile(r'<figure id="([\w-]+)"')


def _words(page: str) -> str:
    """Return the page's text without scripts, styles and tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_errors_come_first_and_every_repair_has_its_gain(tmp_path: Path) -> None:
    """With renderings of prompts, and what could not be tried."""
    inspection = broken(tmp_path)
    assert inspection.trial is not None
    tried = inspection.trial.tried
    rendered = replace(tried[0], change=replace(tried[0].change, change="no first token"))
    left_out = NotApplicable(id="drafters_template", reason="none was saved")
    trial = replace(inspection.trial, renderings=(rendered,), not_applicable=(left_out,))
    page = _words(inspection_html(replace(inspection, trial=trial)))
    assert "no first token" in page
    assert "Not tried: drafters_template: none was saved." in page
    for one in tried:
        assert f"{one.acceptance.mean_length:.2f} {one.gain.difference:+.2f}" in page
    assert "▲ error broken: 1 error, 1 warning, 1 note" in page
    assert page.index("▲ error with") < page.index("◆ warning") < page.index("ℹ note")
    assert 'Change: "norm_output": true' in page
    assert '2 changes, one at a time. This one helps: "norm_output": true.' in page


def test_each_result_is_a_card_and_none_is_told_with_the_number_of_checks(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    page = inspection_html(inspection)
    assert page.count("<article") == len(inspection.results)
    assert '<code class="option" tabindex="0">&#34;norm_output&#34;: true</code>' in page
    clean = inspection_html(replace(inspection, results=()))
    assert f"Nothing, in {inspection.checks} checks." in clean


def test_names_and_words_of_a_checkpoint_are_escaped(tmp_path: Path) -> None:
    inspection = replace(broken(tmp_path, mistake=HOSTILE), drafter=HOSTILE, target=HOSTILE)
    result = replace(constructed_ablation(), drafter=HOSTILE, not_applicable={HOSTILE: HOSTILE})
    command = f"driftscope analyze {HOSTILE}"
    for page in (inspection_html(inspection), ablation_html(result, command=command)):
        assert HOSTILE not in page and "<img" not in page


def test_a_browser_draws_every_picture_and_asks_for_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    pages = inspection_html(broken(tmp_path)), ablation_html(constructed_ablation())
    for page in pages:
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        assert_drawn_alone(browser, tmp_path / "page.html")


def _figure(page: str, name: str) -> dict[str, object]:
    (figures,) = re.findall(r'<script[^>]*id="figures"[^>]*>(.*?)</script>', page, re.DOTALL)
    return dict(json.loads(figures)[name])


def test_the_parts_of_the_loss_are_bars_with_intervals() -> None:
    result = constructed_ablation()
    page = ablation_html(result)
    parts = result.decomposition
    assert parts is not None
    drawn = json.dumps(_figure(page, "loss"))
    assert all(f'"{name}"' in drawn for name in ("tokens", "states", "rest", "in all"))
    words = _words(page)
    for part in (parts.tokens, parts.states, parts.rest, parts.loss):
        assert part.interval is not None
        ends = f"{100 * part.interval.low:+.1f} to {100 * part.interval.high:+.1f}"
        assert f"{100 * part.value:+.1f} {ends}" in words
    assert "Wrong tokens cost no acceptance" in words


def test_every_intervention_has_its_change() -> None:
    result = constructed_ablation()
    words = _words(ablation_html(result))
    for effect in result.effects[1:]:
        assert effect.interval is not None
        low, high = effect.interval.low, effect.interval.high
        length = f"{effect.acceptance.mean_length:.2f}"
        row = f"{length} {effect.difference:+.2f} {low:+.2f} to {high:+.2f} {effect.prompts}"
        assert f"{effect.intervention.shows} {row}" in words
    assert "Not applicable: served-dtype: no config names a dtype" in words


def test_agreement_is_drawn_by_depth_for_each_group() -> None:
    page = ablation_html(constructed_ablation())
    pictures = ["loss", "agreement-factors", "near-misses"]
    assert FIGURES.findall(page) == pictures
    drawn = json.dumps(_figure(page, "agreement-factors"))
    assert all(name in drawn for name in ("as served", "right-tokens", "right-both"))


def test_the_ends_are_bars_and_a_sentence_says_what_reaches_them() -> None:
    result = constructed_ablation()
    found = result.near_misses
    assert found is not None and found.ends > 100
    page = ablation_html(result)
    assert found.words in _words(page) and found.remedy.value in found.words
    drawn = json.dumps(_figure(page, "near-misses"))
    assert all(f'"{name}"' in drawn for name in ("best 2", "best 8", "second choice", "close"))
    assert '"lacking"' not in drawn
    unasked = ablation_html(replace(result, near_misses=None))
    assert "What the rejected tokens" not in _words(unasked)


def test_the_vocabulary_is_shown_only_if_it_lacks_tokens() -> None:
    assert "12.5% of the tokens" in _words(ablation_html(constructed_ablation()))
    assert "draft vocabulary" not in _words(ablation_html(constructed_ablation(lacking=0)))


def test_without_the_factors_the_page_says_what_to_ask() -> None:
    result = constructed_ablation()
    page = ablation_html(replace(result, decomposition=None, effects=result.effects[:1]))
    assert "states cost was not asked" in _words(page)
    assert "Add right-states to --interventions" in _words(page)
    assert FIGURES.findall(page) == ["agreement-factors", "near-misses"]


@pytest.mark.parametrize(
    ("cause", "costs", "advice"),
    [("states", True, "Train the drafter"), ("tokens", False, "depth 1")],
)
def test_the_headline_gives_a_share_only_to_what_costs_acceptance(
    cause: str, costs: bool, advice: str
) -> None:
    """Wrong tokens that a chain reads cost agreement, and no acceptance."""
    result = constructed_ablation(cause)
    found, words = conclusion_of(result), _words(ablation_html(result))
    assert found.costs == costs
    assert found.headline.startswith("The drafter's own states cost")
    assert ("no acceptance that shows" in found.headline) != costs
    assert "wrong tokens" not in found.headline
    assert found.headline in words and advice in words
