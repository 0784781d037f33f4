"""What a stream said, put together piece by piece."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope import strict_json


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """One call of a function, its arguments as they were streamed."""

    name: str = ""
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class Answer:
    """Grows with every event of a stream."""

    response: str | None = None
    parts: list[str] = field(default_factory=list)
    calls: dict[int, ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    speculation: Mapping[str, Any] | None = None
    """`metrics.speculative_decoding`, as vLLM gives it."""
    error: str | None = None
    """The server's own words, where it ended a stream with an error."""

    @property
    def text(self) -> str:
        """Everything said, reasoning included."""
        return "".join(self.parts)

    def digest(self) -> str:
        """sha256 of text and calls, first 16 hex digits."""
        calls = [[call.name, call.arguments] for _, call in sorted(self.calls.items())]
        return hashlib.sha256(strict_json.dumps([self.text, calls]).encode()).hexdigest()[:16]

    def add(self, event: Mapping[str, Any]) -> bool:
        """Take up an event; whether it brought a piece of the answer."""
        if self.response is None:
            self.response = _string(event.get("id"))
        if usage := event.get("usage"):
            self.usage = _mapping(usage) or self.usage
        if metrics := event.get("metrics"):
            told = (_mapping(metrics) or {}).get("speculative_decoding")
            self.speculation = _mapping(told) or self.speculation
        if (error := event.get("error")) is not None:
            self.error = _words(error)
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        return isinstance(choice, dict) and self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> bool:
        if reason := choice.get("finish_reason"):
            self.finish_reason = _string(reason) or self.finish_reason
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice
        thought = delta.get("reasoning") or delta.get("reasoning_content")  # the same, by two names
        before = len(self.parts)
        for piece in (thought, delta.get("content"), delta.get("text")):
            if piece and isinstance(piece, str):
                self.parts.append(piece)
        calls = delta.get("tool_calls")
        return (bool(calls) and self._calls(calls)) or len(self.parts) > before

    def _calls(self, deltas: Any) -> bool:
        came = False
        for delta in deltas if isinstance(deltas, list) else ():
            index = delta.get("index", 0) if isinstance(delta, dict) else None
            if not isinstance(index, int):
                continue
            function = _mapping(delta.get("function")) or {}
            call = self.calls.setdefault(index, ToolCall())
            call.name += _string(function.get("name")) or ""
            call.arguments += _string(function.get("arguments")) or ""
            came = True
        return came


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _words(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)
