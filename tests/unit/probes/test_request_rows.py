"""Digests of prompts, and which prompts continue a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from driftscope_probes import request_rows as module
from driftscope_probes.request_rows import ANSWER_TOKENS, PromptDigests

KEY, OTHER_KEY = b"k" * 16, b"o" * 16
FIRST, ANSWER = [5, 6, 7, 8, 9], [101, 102, 103]


def _request(prompt: Sequence[int] | None, answer: Sequence[int] = (), **more: Any) -> Any:
    tokens = None if prompt is None else list(prompt)
    return SimpleNamespace(prompt_token_ids=tokens, output_token_ids=list(answer), **more)


def test_equal_prompts_have_equal_digests_and_others_do_not() -> None:
    digests = PromptDigests(KEY)
    first, again, other = (digests.of(_request(p, ANSWER)) for p in (FIRST, FIRST, FIRST[::-1]))
    assert first == again
    assert first[0] != other[0]
    assert first[0] is not None
    assert len(first[0]) == 16


def test_the_key_decides_which_digests_agree() -> None:
    same, other = (PromptDigests(key).of(_request(FIRST)) for key in (KEY, OTHER_KEY))
    assert PromptDigests(KEY).of(_request(FIRST)) == same
    assert same[0] != other[0]


def test_equal_placeholders_of_different_images_are_different_prompts() -> None:
    digests = PromptDigests(KEY)
    images = [[SimpleNamespace(identifier=name)] for name in ("cat", "dog")]
    cat, dog = (digests.of(_request(FIRST, mm_features=each))[0] for each in images)
    assert cat != dog


def test_a_later_turn_belongs_to_the_conversation_that_it_continues() -> None:
    digests = PromptDigests(KEY)
    first, _ = digests.of(_request(FIRST, ANSWER))
    second, of_second = digests.of(_request([*FIRST, *ANSWER, 20, 21], [7, 7]))
    third, of_third = digests.of(_request([*FIRST, *ANSWER, 20, 21, 7, 7, 30], [1]))
    assert of_second == of_third == first
    assert len({first, second, third}) == 3


def test_the_end_of_an_answer_may_be_tokenised_anew() -> None:
    digests = PromptDigests(KEY)
    answer = list(range(200, 200 + 2 * ANSWER_TOKENS))
    first, _ = digests.of(_request(FIRST, answer))
    changed = [*answer[:-1], 999]
    assert digests.of(_request([*FIRST, *changed, 20], [1]))[1] == first


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param([*FIRST, 20, 21, 22, 23], id="only the prompt is repeated, not the answer"),
        pytest.param([*FIRST, 101, 102, 9, 20], id="another answer"),
        pytest.param([4, *FIRST, *ANSWER, 20], id="at another place"),
        pytest.param([*FIRST, *ANSWER[:2]], id="shorter than what it would continue"),
    ],
)
def test_another_prompt_begins_a_conversation_of_its_own(prompt: list[int]) -> None:
    digests = PromptDigests(KEY)
    digests.of(_request(FIRST, ANSWER))
    own, conversation = digests.of(_request(prompt, [1]))
    assert conversation == own


def test_a_prompt_of_embeddings_has_no_digest() -> None:
    digests = PromptDigests(KEY)
    assert digests.of(_request(None, ANSWER)) == (None, None)
    assert digests.of(_request(FIRST, ANSWER, prompt_embeds=object())) == (None, None)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_ANSWERS", 10)
    digests = PromptDigests(KEY)
    names = [digests.of(_request([n, n], [n]))[0] for n in range(1, 31)]
    latest, forgotten = ([30, 30, 30, 1], [2]), ([1, 1, 1, 1], [2])
    assert digests.of(_request(*latest))[1] == names[-1]
    own, conversation = digests.of(_request(*forgotten))
    assert own == conversation
    assert len(digests._roots) == len(digests._length_of) == 10
    assert sum(digests._lengths.values()) == 10
