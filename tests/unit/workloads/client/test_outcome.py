"""Checks of an answer that need no judge."""

from __future__ import annotations

import pytest

from driftscope.workloads.client.answer import (
    Answer,
    ToolCall,
    is_garbled,
    is_json,
    is_looping,
    outcome_of,
)
from driftscope.workloads.suites.filler_text import document, json_result, shell, stack_trace
from driftscope.workloads.suites.prompts import TOOLS, Expect, Prompt


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("[1, 2]", True),
        ("```json\n[1]\n```", True),
        ("[1, 2", False),
        ("Sure! [1]", False),
        ('["a"]', False),
        ("", False),
    ],
)
def test_json(text: str, fits: bool) -> None:
    assert is_json(text, {"type": "array", "items": {"type": "integer"}}) is fits


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("weather", '{"city": "Lisbon", "unit": "celsius"}', True),
        ("weather", '{"city": "Lisbon", "unit": "kelvin"}', False),
        ("weather", '{"city": "Lisbon"}', False),
        ("weather", '{"city": "Lis', False),
        ("shell", '{"command": "weather Lisbon"}', False),
    ],
)
def test_a_tool_call(name: str, arguments: str, right: bool) -> None:
    prompt = Prompt(key="x", tools=TOOLS, expect=Expect(tool="weather"))
    answer = Answer(calls={0: ToolCall(names=[name], pieces=[arguments])})
    assert outcome_of(prompt, answer, 9).tool_ok is right
    assert outcome_of(prompt, Answer(), 9).tool_ok is False


@pytest.mark.parametrize(
    ("reason", "tokens", "early"), [("stop", 10, True), ("stop", 300, False), ("length", 10, False)]
)
def test_an_early_stop(reason: str, tokens: int, early: bool) -> None:
    prompt = Prompt(key="x", expect=Expect(min_tokens=200))
    assert outcome_of(prompt, Answer(finish_reason=reason), tokens).early_stop is early
    assert outcome_of(Prompt(key="x"), Answer(finish_reason=reason), tokens).early_stop is None


def test_a_repetition_loop() -> None:
    import random

    source = random.Random(3)
    assert is_looping("It began well. " + "and then again " * 12)
    assert is_looping("x" * 100) and is_looping("start " + "self.buffer[0] = 0\n" * 9 + "self.b")
    for text in (
        "",
        "ok",
        "....",
        "ha ha ha ha ha",
        "-" * 60,
        document(3000, source),
        json_result(source),
        shell(source),
        stack_trace(source),
    ):
        assert not is_looping(text), text


def test_garbled() -> None:
    assert is_garbled("the \ufffd\ufffd\ufffd\ufffd end") and is_garbled("\x00\x01\x02 a")
    for text in ("", "plain\n\ttext", "早上好，世界", "👩‍🔬 works", "cut off \ufffd"):
        assert not is_garbled(text), text
