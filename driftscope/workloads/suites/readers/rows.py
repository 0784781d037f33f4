"""Conversion of one row of a data set into a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.workloads.suites.prompt import Message, Prompt, chat

_KEYS = ("question_id", "custom_id", "uuid", "id", "request_id")
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "tool": "tool",
}
_KEPT = frozenset(
    {
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "tool_choice",
        "response_format",
        "presence_penalty",
        "frequency_penalty",
    }
)
"""Fields kept from a logged request's body. Model, stream and user are this replay's own."""


def prompt_of(row: Mapping[str, Any], fallback: str) -> Prompt | None:
    """Return the prompt in `row`; None if it has none.

    Of several user turns only the first is asked, because the others respond to a model's answers.
    """
    key = next((str(row[name]) for name in _KEYS if row.get(name) not in (None, "")), fallback)
    category = row.get("category") if isinstance(row.get("category"), str) else None
    for name in ("body", "request", "request_body"):
        if isinstance(row.get(name), dict):
            return _logged(row[name], key, category)
    if isinstance(row.get("messages"), list):
        return _logged(row, key, category)
    if isinstance(row.get("conversations"), list):
        return _shared(row["conversations"], key, category)
    for name in ("turns", "prompt", "question", "instruction"):
        first = _first(row.get(name))
        if first:
            return chat(key, first, category=category)
    return None


def _logged(body: Mapping[str, Any], key: str, category: str | None) -> Prompt | None:
    """Return a request to the chat or the completions endpoint, up to the turn that was
    answered."""
    options = {name: body[name] for name in _KEPT & body.keys()}
    text = body.get("prompt")
    if isinstance(text, str) and text:
        return Prompt(key=key, text=text, options=options, category=category)
    messages = _asked(body.get("messages"))
    if not messages:
        return None
    tools = tuple(t for t in body.get("tools") or () if isinstance(t, dict))
    return Prompt(key=key, messages=messages, tools=tools, options=options, category=category)


def _asked(messages: Any) -> tuple[Message, ...]:
    """Return the messages without the final answers, which fine-tuning files contain."""
    kept = [m for m in messages or () if isinstance(m, dict) and isinstance(m.get("role"), str)]
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
    return tuple(kept)


def _shared(turns: Sequence[Any], key: str, category: str | None) -> Prompt | None:
    messages: list[Message] = []
    for turn in turns:
        fields = turn if isinstance(turn, dict) else {}
        role = _ROLES.get(str(fields.get("from", fields.get("role"))))
        text = fields.get("value", fields.get("content"))
        if role is None or not isinstance(text, str):
            return None
        if role == "assistant":
            break
        messages.append({"role": role, "content": text})
    if not any(m["role"] == "user" for m in messages):
        return None
    return Prompt(key=key, messages=tuple(messages), category=category)


def _first(value: Any) -> str | None:
    """Return a text, or the first of a list of texts or turns; None if there is none."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        value = value.get("content", value.get("text"))
    return value if isinstance(value, str) and value.strip() else None
