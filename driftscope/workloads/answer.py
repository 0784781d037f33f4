"""What a stream said, put together piece by piece."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
        return hashlib.sha256(json.dumps([self.text, calls]).encode()).hexdigest()[:16]

    def add(self, event: Mapping[str, Any]) -> bool:
        """Take up an event; whether it brought a piece of the answer."""
        self.response = self.response or _string(event.get("id"))
        self.usage = _mapping(event.get("usage")) or self.usage
        metrics = _mapping(event.get("metrics")) or {}
        self.speculation = _mapping(metrics.get("speculative_decoding")) or self.speculation
        if "error" in event:
            self.error = _words(event["error"])
        choices = event.get("choices")
        choice = _mapping(choices[0]) if isinstance(choices, list) and choices else None
        return self._choice(choice) if choice is not None else False

    def _choice(self, choice: Mapping[str, Any]) -> bool:
        self.finish_reason = _string(choice.get("finish_reason")) or self.finish_reason
        delta = _mapping(choice.get("delta")) or {}
        said = [
            piece
            for piece in (
                _string(delta.get("reasoning")) or _string(delta.get("reasoning_content")),
                _string(delta.get("content")),
                _string(choice.get("text")),
            )
            if piece
        ]
        self.parts.extend(said)
        return self._calls(delta.get("tool_calls")) or bool(said)

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
