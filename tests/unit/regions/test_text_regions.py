"""Regions of texts."""

from __future__ import annotations

import pytest
from support.answers import answers

from driftscope.regions.markers import OPENED_BY
from driftscope.regions.text_regions import enclosure_left_open, text_regions
from driftscope.vocabulary import Region


def by_character(text: str, **how: object) -> list[str]:
    """Return the region of each character."""
    regions = text_regions(text, **how)  # type: ignore[arg-type]
    ends = [*(each.start for each in regions[1:]), len(text)]
    return [
        each.region for each, end in zip(regions, ends, strict=True) for _ in range(each.start, end)
    ]


def named(text: str, **how: object) -> list[tuple[str, str]]:
    """Return the pieces of the text with their regions."""
    regions = text_regions(text, **how)  # type: ignore[arg-type]
    ends = [*(each.start for each in regions[1:]), len(text)]
    return [(text[each.start : end], each.region) for each, end in zip(regions, ends, strict=True)]


def test_every_written_answer_has_the_regions_that_it_was_written_with() -> None:
    for pieces in answers():
        text = "".join(piece for piece, _ in pieces)
        wanted = [region for piece, region in pieces for _ in piece]
        wrong = [
            (text[max(at - 20, 0) : at + 20], a, b)
            for at, (a, b) in enumerate(zip(by_character(text), wanted, strict=True))
            if a != b
        ]
        assert not wrong, wrong[0]


def test_regions_begin_at_zero_and_ascend() -> None:
    for pieces in answers():
        starts = [each.start for each in text_regions("".join(piece for piece, _ in pieces))]
        assert starts[0] == 0
        assert starts == sorted(set(starts))


def test_an_empty_answer_has_no_region() -> None:
    assert text_regions("") == []


@pytest.mark.parametrize(
    ("opening", "closing"), [(o, (e.closing or ("",))[0]) for o, e in OPENED_BY.items()]
)
def test_each_enclosure_opens_and_closes(opening: str, closing: str) -> None:
    inside = OPENED_BY[opening].region
    found = named(f"Well. {opening}abc {closing}done")
    assert found[:3] == [("Well. ", "prose"), (opening, "template"), (found[2][0], inside)]
    if closing:
        assert [each[1] for each in found[3:]] == ["template", "prose"]


def test_a_longer_fence_holds_a_shorter_one() -> None:
    text = "````markdown\n```python\nx = 1\n```\n````\nDone."
    assert [region for _, region in named(text)] == ["code", "prose"]


def test_a_fence_in_the_middle_of_a_line_is_prose() -> None:
    assert [region for _, region in named("Use ```x``` here.")] == ["prose"]


def test_a_special_token_in_a_fence_opens_a_tool_call_and_plain_text_does_not() -> None:
    text = "```python\nx = 1\n<tool_call>{}"
    at = text.index("<tool_call>")
    assert [region for _, region in named(text)] == ["code"]
    special = [(at, at + len("<tool_call>"))]
    assert [r for _, r in named(text, special=special)] == ["code", "template", "json"]


def test_special_tokens_are_template_wherever_they_stand() -> None:
    text = "Hello<|end|>"
    assert named(text, special=[(5, 12)]) == [("Hello", "prose"), ("<|end|>", "template")]


def test_an_answer_under_a_json_constraint_is_json_to_its_end() -> None:
    assert named("[1, 2] and more", constraint="json") == [("[1, 2] and more", "json")]


@pytest.mark.parametrize("opened_by", ["the prompt", "the answer"])
def test_a_constraint_begins_after_the_thinking(opened_by: str) -> None:
    if opened_by == "the prompt":
        text, inside = "3 ways. </think>\n42", enclosure_left_open("<think>")
        found = named(text, inside=inside, constraint="guided")
    else:
        found = named("<think>3 ways. </think>\n42", constraint="guided")
        assert found.pop(0) == ("<think>", "template")
    assert found == [("3 ways. ", "thinking"), ("</think>", "template"), ("\n42", "guided")]


def test_a_guided_answer_is_guided_whatever_it_looks_like() -> None:
    text = "```py\nx = 1\n```\n| a |\n"
    assert named(text, constraint="guided") == [(text, "guided")]
    special = [(len(text), len(text) + 5)]
    assert named(text + "<eos>", special=special, constraint="guided") == [
        (text, "guided"),
        ("<eos>", "template"),
    ]


def test_a_tool_call_that_the_prompt_opened_is_no_thinking() -> None:
    inside = enclosure_left_open("<tool_call>")
    found = named('{"a": 1}</tool_call>', inside=inside, constraint="json")
    assert found == [('{"a": 1}', "json"), ("</tool_call>", "template")]


def test_prose_that_begins_with_a_bracket_is_no_json() -> None:
    assert Region.JSON not in by_character("{see below} for the rest")
    assert Region.JSON not in by_character("[see](below) for the rest")


def test_text_after_a_json_value_is_prose() -> None:
    assert named('{"a": "}"}\nDone.') == [('{"a": "}"}', "json"), ("\nDone.", "prose")]


def test_the_prompt_may_open_the_thinking() -> None:
    inside = enclosure_left_open("<|im_start|>assistant\n<think>\n")
    assert named("So. </think>Yes.", inside=inside) == [
        ("So. ", "thinking"),
        ("</think>", "template"),
        ("Yes.", "prose"),
    ]
    assert enclosure_left_open("<think>\n\n</think>\n\n") is None


def test_boundaries_are_where_blocks_begin_and_end() -> None:
    text = "A list:\n- one 1\n```py\nx\n```\nDone."
    found = [(each.start, each.region) for each in text_regions(text) if each.boundary]
    assert found == [(text.index("```py"), "code"), (text.index("Done."), "prose")]
