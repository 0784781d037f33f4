"""Kinds of text of the rounds of single requests."""

from __future__ import annotations

from typing import Any

from driftscope.analysis.closeup import regions_of
from driftscope.vocabulary import Region

PROMPT = 100
ANSWER: dict[str, Any] = {
    "prompt_tokens": PROMPT,
    "region_starts": [0, 10, 20],
    "region_codes": [Region.ALL.index(name) for name in ("prose", "json", "prose")],
    "region_boundaries": [10, 20],
    "region_copies": [5, 13],
}


def at(*tokens: int) -> list[int]:
    """Return the positions of rounds that draft from these tokens of the answer on."""
    return [PROMPT + token - 2 for token in tokens]


def test_a_round_has_the_region_of_the_first_token_that_it_drafts() -> None:
    regions, copied = regions_of(at(1, 9, 10, 19, 20, 99), ANSWER)
    assert regions == ("prose", "prose", "json", "json", "prose", "prose")
    assert copied == (False, True, True, False, False, False)


def test_nothing_is_known_of_a_request_without_regions_or_without_a_row() -> None:
    assert regions_of(at(1), None) == ((), ())
    assert regions_of(at(1), {**ANSWER, "region_starts": None}) == ((), ())
    assert regions_of(at(1), {**ANSWER, "region_starts": []}) == ((), ())


def test_a_region_of_a_later_version_is_not_known() -> None:
    later = {**ANSWER, "region_codes": [0, len(Region.ALL), 0]}
    assert regions_of(at(1, 12), later) == ((), ())
    assert regions_of(at(1, 20), later)[0] == ("prose", "prose")
