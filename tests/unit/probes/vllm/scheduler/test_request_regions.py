"""Regions of finished requests' answers, with the tokenizer that vLLM's engine core has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from driftscope.vocabulary import Region
from driftscope_probes.vllm.schedule import RequestRegions

TEXTS = ("", "Well. ", "<tool_call>", '{"a": 1}', "</tool_call>", "<s>", "<think>")


class Tokenizer:
    """A tokenizer of a few whole words."""

    all_special_ids = (5,)

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(TEXTS[each] for each in ids)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [TEXTS[each] for each in ids]


def request(prompt: list[int] | None, answer: list[int]) -> Any:
    return SimpleNamespace(prompt_token_ids=prompt, output_token_ids=answer)


def scheduler(tokenizer: Any) -> Any:
    return SimpleNamespace(structured_output_manager=SimpleNamespace(tokenizer=tokenizer))


def names(codes: list[int]) -> list[str]:
    return [Region.ALL[each] for each in codes]


def test_an_answer_has_its_regions() -> None:
    found = RequestRegions(scheduler(Tokenizer())).of(request([1], [1, 2, 3, 4, 1]), "none")
    assert found is not None
    assert found.starts == [0, 1, 2, 3, 4]
    assert names(found.codes) == ["prose", "template", "json", "template", "prose"]
    assert found.boundaries == [1, 4]


@pytest.mark.parametrize(
    ("structured", "region"),
    [
        ("json", "json"),
        ("json_object", "json"),
        ("regex", "guided"),
        ("choice", "guided"),
        ("grammar", "guided"),
        ("structural_tag", "prose"),
        ("none", "prose"),
        (None, "prose"),
    ],
)
def test_a_constrained_answer_has_the_region_of_its_constraint(
    structured: str | None, region: str
) -> None:
    found = RequestRegions(scheduler(Tokenizer())).of(request([1], [1, 1]), structured)
    assert found is not None
    assert names(found.codes) == [region]


@pytest.mark.parametrize(
    ("manager", "region"),
    [({}, "thinking"), ({"reasoner_cls": None}, "guided"), ({"reasoner_cls": str}, "thinking")],
)
def test_without_a_reasoning_parser_a_constraint_holds_from_the_first_token(
    manager: dict[str, Any], region: str
) -> None:
    """The prompt has opened thinking, which the answer does not close."""
    core = scheduler(Tokenizer())
    vars(core.structured_output_manager).update(manager)
    found = RequestRegions(core).of(request([6], [1]), "regex")
    assert found is not None
    assert names(found.codes) == [region]


def test_without_a_tokenizer_nothing_is_recorded() -> None:
    for each in (SimpleNamespace(), SimpleNamespace(structured_output_manager=SimpleNamespace())):
        assert RequestRegions(each).of(request([1], [1]), None) is None


def test_a_prompt_of_embeddings_has_no_tokens() -> None:
    found = RequestRegions(scheduler(Tokenizer())).of(request(None, [1]), None)
    assert found is not None
    assert names(found.codes) == ["prose"]
