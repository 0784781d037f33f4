"""The page "Why" shows the parts of the loss, every intervention, and agreement by depth."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from support.ablations import constructed_ablation
from support.chromium import assert_drawn_alone

from driftscope.ablate.result import conclusion_of
from driftscope_reports.ablation_page import to_html

HOSTILE = "</script><img src=x onerror=boom()>"
FIGURES = re.compile(r'<figure id="([\w-]+)"')


def _words(page: str) -> str:
    """Return the page's text without scripts, styles and tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def _figure(page: str, name: str) -> dict[str, object]:
    found = re.search(r'<script[^>]*id="figures"[^>]*>(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    figure: dict[str, object] = json.loads(found[1])[name]
    return figure


def test_the_parts_of_the_loss_are_bars_with_intervals() -> None:
    result = constructed_ablation()
    page = to_html(result)
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


def test_every_intervention_has_its_change_and_how_it_is_paired() -> None:
    result = constructed_ablation()
    words = _words(to_html(result))
    for each in result.effects[1:]:
        assert each.interval is not None
        low, high = each.interval.low, each.interval.high
        row = f"{each.acceptance.mean_length:.2f} {each.difference:+.2f} {low:+.2f} to {high:+.2f}"
        assert f"{each.intervention.shows} {row} {each.prompts} {each.paired_by.value}" in words
    assert "Not applicable: template: the drafter was saved without a chat template" in words
    assert "the target answered the prompts anew" in words


def test_agreement_is_drawn_by_depth_for_each_group() -> None:
    page = to_html(constructed_ablation())
    assert FIGURES.findall(page) == ["loss", "agreement-factors", "agreement-prompts"]
    drawn = json.dumps(_figure(page, "agreement-factors"))
    assert all(name in drawn for name in ("as served", "right-tokens", "right-both"))


def test_the_vocabulary_is_shown_only_if_it_lacks_tokens() -> None:
    assert "12.5% of the tokens" in _words(to_html(constructed_ablation()))
    assert "draft vocabulary" not in _words(to_html(constructed_ablation(lacking=0)))


def test_without_the_factors_the_page_says_what_to_ask() -> None:
    result = constructed_ablation()
    page = to_html(replace(result, decomposition=None, effects=result.effects[:1]))
    assert "states cost was not asked" in _words(page)
    assert "Add right-states to --interventions" in _words(page)
    assert FIGURES.findall(page) == ["agreement-factors"]


@pytest.mark.parametrize(
    ("cause", "costs", "advice"),
    [("states", True, "Train the drafter"), ("tokens", False, "depth 1")],
)
def test_the_headline_gives_a_share_only_to_what_costs_acceptance(
    cause: str, costs: bool, advice: str
) -> None:
    """Wrong tokens that a chain reads cost agreement, and no acceptance."""
    result = constructed_ablation(cause)
    found, words = conclusion_of(result), _words(to_html(result))
    assert found.costs == costs
    assert found.headline.startswith("The drafter's own states cost")
    assert ("no acceptance that shows" in found.headline) != costs
    assert "wrong tokens" not in found.headline
    assert found.headline in words and advice in words


def test_hostile_names_are_text() -> None:
    result = replace(constructed_ablation(), drafter=HOSTILE, not_applicable={HOSTILE: HOSTILE})
    page = to_html(result, command=f"driftscope analyze {HOSTILE}")
    assert HOSTILE not in page


def test_the_same_result_makes_the_same_page() -> None:
    assert to_html(constructed_ablation()) == to_html(constructed_ablation())


def test_a_browser_draws_every_picture_and_asks_for_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(to_html(constructed_ablation()), encoding="utf-8")
    assert_drawn_alone(browser, path)
