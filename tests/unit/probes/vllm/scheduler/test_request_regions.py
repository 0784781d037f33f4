"""Regions of finished requests' answers, with the tokenizer that vLLM's engine core has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from driftscope.vocabulary import Region
from driftscope_probes.vllm.scheduler.request_regions import RequestRegions

TEXTS = ("", "Well. ", "<tool_call>", '{"a": 1}', "</tool_call>", "<s>")


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


def test_a_constrained_answer_is_json() -> None:
    found = RequestRegions(scheduler(Tokenizer())).of(request([1], [1, 1]), "json")
    assert found is not None
    assert names(found.codes) == ["json"]


def test_without_a_tokenizer_nothing_is_recorded() -> None:
    for each in (SimpleNamespace(), SimpleNamespace(structured_output_manager=SimpleNamespace())):
        assert RequestRegions(each).of(request([1], [1]), None) is None


def test_a_prompt_of_embeddings_has_no_tokens() -> None:
    found = RequestRegions(scheduler(Tokenizer())).of(request(None, [1]), None)
    assert found is not None
    assert names(found.codes) == ["prose"]
