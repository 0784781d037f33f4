"""Prompts are written otherwise where that is possible; otherwise the reason is given."""

from __future__ import annotations

from typing import Any

import pytest
from support.checkpoints import TARGET
from transformers import AutoTokenizer

from driftscope.inspect.trial.result import NotApplicable
from driftscope.inspect.trial.trial import Ids, renderings

OWN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ASKED = {"a": [{"role": "user", "content": "Write a loop."}]}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TARGET)


def _reasons(left_out: list[NotApplicable]) -> dict[str, str]:
    return {each.id: each.reason for each in left_out}


@pytest.mark.parametrize(
    ("prompts", "change", "expected"),
    [
        ({"a": [0, 7, 8], "b": [0, 9]}, "first_token_off", {"a": [7, 8], "b": [9]}),
        ({"a": [7, 8], "b": [9]}, "first_token_on", {"a": [0, 7, 8], "b": [0, 9]}),
    ],
)
def test_the_first_token_is_left_out_or_added(
    tokenizer: Any, prompts: Ids, change: str, expected: Ids
) -> None:
    made, _ = renderings(tokenizer, prompts, {}, (None, None))
    assert [rendering.change.id for rendering in made] == [change]
    assert made[0].prompts == expected


@pytest.mark.parametrize(
    ("prompts", "reason"),
    [
        ({"a": [0, 7], "b": [9]}, "only some prompts"),
        ({"a": [0, 7], "b": [0]}, "nothing but"),
    ],
)
def test_a_first_token_that_cannot_be_changed_has_a_reason(
    tokenizer: Any, prompts: Ids, reason: str
) -> None:
    made, left_out = renderings(tokenizer, prompts, {}, (None, None))
    assert not made
    assert reason in _reasons(left_out)["first_token"]


def test_without_a_first_token_there_is_nothing_to_try() -> None:
    other = AutoTokenizer.from_pretrained(TARGET, bos_token=None)
    made, left_out = renderings(other, {"a": [7]}, {}, (None, None))
    assert not made
    assert "no first token" in _reasons(left_out)["first_token"]


def test_the_drafters_own_template_is_tried(tokenizer: Any) -> None:
    made, left_out = renderings(tokenizer, {"a": [0, 7]}, ASKED, (tokenizer.chat_template, OWN))
    assert [each.change.id for each in made] == ["first_token_off", "drafters_template"]
    assert tokenizer.decode(made[1].prompts["a"]) == "Write a loop."
    assert not left_out


@pytest.mark.parametrize(
    ("own", "asked", "reason"),
    [
        (None, ASKED, "without a chat template"),
        ("same", ASKED, "is the target's"),
        (OWN, {}, "texts, not conversations"),
        ('[{"name": "default"}]', ASKED, "several"),
        ("{{ raise_exception('no system role') }}", ASKED, "no system role"),
        ("{% broken", ASKED, "fails"),
        ("{# nothing #}", ASKED, "renders nothing"),
    ],
)
def test_a_template_that_cannot_be_tried_has_a_reason(
    tokenizer: Any, own: str | None, asked: dict[str, Any], reason: str
) -> None:
    targets = tokenizer.chat_template
    own = targets if own == "same" else own
    made, left_out = renderings(tokenizer, {"a": [0, 7]}, asked, (targets, own))
    assert [each.change.id for each in made] == ["first_token_off"]
    assert reason in _reasons(left_out)["drafters_template"]
