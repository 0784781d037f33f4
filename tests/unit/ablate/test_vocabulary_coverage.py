"""Shares of lacking tokens by kind of text, from counts that are known."""

from __future__ import annotations

import pytest

from driftscope.ablate.result import coverage_of


def test_shares_are_sums_over_the_prompts() -> None:
    found = coverage_of(
        [
            {"prose": (30, 3), "code": (10, 5)},
            {"prose": (70, 1)},
            {"prose": (20, 2), "code": (30, 9)},
        ]
    )
    assert found.lacking == pytest.approx(20 / 160)
    prose, code = found.by_region
    assert (prose.region, prose.tokens, prose.lacking) == ("prose", 120, pytest.approx(6 / 120))
    assert (code.region, code.tokens, code.lacking) == ("code", 40, pytest.approx(14 / 40))


def test_a_share_of_0_has_an_upper_bound_and_one_prompt_has_no_interval() -> None:
    (prose,) = coverage_of([{"prose": (50, 0)}] * 12).by_region
    assert prose.lacking == 0.0
    assert prose.interval is not None and 0.0 < prose.interval.high < 0.5
    (alone,) = coverage_of([{"prose": (50, 4)}]).by_region
    assert alone.interval is None


def test_no_answer_has_no_region() -> None:
    empty = coverage_of([])
    assert (empty.lacking, empty.by_region) == (0.0, ())
