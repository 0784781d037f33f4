"""Checks of an answer that need no judge, such as valid JSON, the right tool call and no
garbling."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.workloads.client.answer import Answer
from driftscope.workloads.suites.prompts import Prompt

GARBLED_SHARE = 0.02
"""Largest share of characters that do not occur in text (replacement, control, private use,
unassigned): one in fifty. Broken byte-level tokens show as replacement characters. The bound is
driftscope's own."""
GARBLED_LEAST = 3
"""Fewest such characters: a single one is an emoji cut at max_tokens."""
LOOP_UNIT = 200
"""Longest repeated unit that is searched for, in characters."""
LOOP_TIMES = 4
"""Number of equal units at the end of a text that make a loop, if they reach LOOP_CHARACTERS."""
LOOP_CHARACTERS = 80
"""Shortest loop, in characters, so that "....", "ha ha ha" and a ruled line do not count."""
_NO_TEXT = {"Cc", "Cn", "Co", "Cs"}
_LAYOUT = "\n\r\t"
_WITHOUT_LAYOUT = str.maketrans("", "", _LAYOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of the checks; None: nothing was expected, so nothing was checked."""

    json_ok: bool | None
    tool_ok: bool | None
    early_stop: bool | None
    garbled: bool | None
    looping: bool | None


UNCHECKED = Outcome(json_ok=None, tool_ok=None, early_stop=None, garbled=None, looping=None)
"""Outcome of an answer that is not complete."""


def outcome_of(prompt: Prompt, answer: Answer, output_tokens: int | None) -> Outcome:
    """Return the results of the checks on a complete `answer` to `prompt`."""
    expect, text = prompt.expect, answer.text
    return Outcome(
        json_ok=is_json(text, expect.schema) if expect.json or expect.schema else None,
        tool_ok=calls_right(prompt, answer) if expect.tool else None,
        early_stop=None
        if expect.min_tokens is None or output_tokens is None
        else answer.finish_reason == "stop" and output_tokens < expect.min_tokens,
        garbled=is_garbled(text),
        looping=is_looping(text),
    )


def is_json(text: str, schema: Mapping[str, Any] | None = None) -> bool:
    """Return whether `text` is one JSON value that fits `schema`, with or without a code fence."""
    try:
        value = json.loads(_unfenced(text))
    except (ValueError, RecursionError):
        return False
    return schema is None or _fits(value, schema)


def calls_right(prompt: Prompt, answer: Answer) -> bool:
    """Return whether a call names the expected function and its arguments fit the function's
    schema."""
    schemas = {
        tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in prompt.tools
    }
    wanted = prompt.expect.tool
    return any(
        call.name == wanted and is_json(call.arguments or "{}", schemas.get(wanted, {}))
        for call in answer.calls.values()
    )


def is_garbled(text: str) -> bool:
    """Return whether more than GARBLED_SHARE of the characters are ones that do not occur in
    text."""
    if "\ufffd" not in text and text.translate(_WITHOUT_LAYOUT).isprintable():
        return False  # fast path for most answers, at a hundredth of the cost
    bad = sum(
        sign == "\ufffd" or (unicodedata.category(sign) in _NO_TEXT and sign not in _LAYOUT)
        for sign in text
    )
    return bad >= GARBLED_LEAST and bad > GARBLED_SHARE * len(text)


def is_looping(text: str) -> bool:
    """Return whether `text` ends in a repeated unit; its last repetition may be cut off."""
    length = len(text)
    for unit in range(1, min(LOOP_UNIT, length // LOOP_TIMES) + 1):
        needed, equal = max(LOOP_TIMES * unit, LOOP_CHARACTERS) - unit, 0
        # Count characters, from the end, that equal those one unit before them.
        while equal + unit < length and text[-1 - equal] == text[-1 - equal - unit]:
            equal += 1
            if equal >= needed:
                return True
    return False


def _unfenced(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        return stripped.removesuffix("```").partition("\n")[2]
    return stripped


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    import jsonschema

    try:
        jsonschema.validate(value, schema)
    except (jsonschema.ValidationError, jsonschema.SchemaError):
        return False
    return True
