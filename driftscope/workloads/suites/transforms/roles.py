"""Conversations written out as text in formats other than a model's own chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from driftscope.workloads.suites.prompt import Message

_NAMES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


def _plain(messages: Sequence[Message]) -> str:
    turns = [f"{_NAMES.get(m['role'], m['role'])}: {_content(m)}" for m in messages]
    return "\n\n".join([*turns, "Assistant:"])


def _nothing(messages: Sequence[Message]) -> str:
    return "\n\n".join(_content(m) for m in messages)


def _chatml(messages: Sequence[Message]) -> str:
    turns = "".join(f"<|im_start|>{m['role']}\n{_content(m)}<|im_end|>\n" for m in messages)
    return f"{turns}<|im_start|>assistant\n"


def _llama3(messages: Sequence[Message]) -> str:
    turns = "".join(f"{_header(m['role'])}{_content(m)}<|eot_id|>" for m in messages)
    return f"{turns}{_header('assistant')}"


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def _instruction(messages: Sequence[Message]) -> str:
    turns = "".join(
        f"### {'Response' if m['role'] == 'assistant' else 'Instruction'}:\n{_content(m)}\n\n"
        for m in messages
    )
    return f"{turns}### Response:\n"


WRITTEN: Mapping[str, Callable[[Sequence[Message]], str]] = {
    "roles": _plain,
    "none": _nothing,
    "chatml": _chatml,
    "llama3": _llama3,
    "instruction": _instruction,
}
"""Writers by template name: role names in plain text, no template at all, or another model's
template."""


def written(template: str, messages: Sequence[Message]) -> str:
    """Return `messages` as text, up to where the answer begins; KeyError for an unknown
    template."""
    return WRITTEN[template](messages)


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    calls = message.get("tool_calls") or ()
    return "\n".join(
        f"{call['function']['name']}({call['function']['arguments']})" for call in calls
    )
