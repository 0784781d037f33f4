"""Each result is a card with its level in words, and what to change as code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.inspections import broken

from driftscope_reports.html.inspection.result_cards import cards


def test_a_card_has_level_rule_and_change(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    made = cards((inspection,), ("broken",))
    assert made.count("<article") == len(inspection.results)
    for each in inspection.results:
        assert f"<code>{each.id}</code>" in made
    assert '<code class="option" tabindex="0">&#34;norm_output&#34;: true</code>' in made


def test_two_drafters_are_named_and_one_is_not(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    assert "<h3>old</h3>" in cards((inspection, inspection), ("old", "new"))
    assert "<h3>old</h3>" not in cards((inspection,), ("old",))


def test_no_result_is_told_with_the_number_of_checks(tmp_path: Path) -> None:
    inspection = replace(broken(tmp_path), results=())
    assert f"Nothing, in {inspection.checks} checks." in cards((inspection,), ("a",))
