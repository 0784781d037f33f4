"""An answer, assembled piece by piece from its stream."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.boundary import strict_json
from driftscope.boundary.bounds import MAX_ANSWER_CHARS, MAX_LABEL_CHARS
from driftscope.workloads.client.event_stream import BrokenStreamError
from driftscope.workloads.client.server_errors import words_in

MAX_CALLS = 1024
"""Most function calls in one answer."""


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """One function call; extended by every event of a stream."""

    names: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the function."""
        return "".join(self.names)

    @property
    def arguments(self) -> str:
        """Arguments as JSON, as far as they were streamed."""
        return "".join(self.pieces)


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer, extended by every event of a stream, up to MAX_ANSWER_CHARS characters.

    Counts of the server are kept unchecked; see `driftscope.workloads.client.answer_counts`.
    """

    response: str | None = None
    parts: list[str] = field(default_factory=list)
    calls: dict[int, ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: Any = None
    speculation: Any = None
    """Value of `metrics.speculative_decoding`, as vLLM sends it."""
    error: str | None = None
    """Error text from the server, if it ended a stream with an error."""
    characters: int = 0
    """Number of characters of text, function names and arguments."""

    @property
    def text(self) -> str:
        """Complete text, reasoning included."""
        return "".join(self.parts)

    def digest(self) -> str:
        """Return the first 16 hex digits of the sha256 of text and calls."""
        calls = [[call.name, call.arguments] for _, call in sorted(self.calls.items())]
        return hashlib.sha256(strict_json.dumps([self.text, calls]).encode()).hexdigest()[:16]

    def add(self, event: Mapping[str, Any]) -> bool:
        """Apply an event; return whether it brought a piece of the answer. Raises
        BrokenStreamError."""
        if self.response is None:
            self.response = _name(event.get("id"))
        if usage := event.get("usage"):
            self.usage = usage
        if metrics := event.get("metrics"):
            speculation = (_mapping(metrics) or {}).get("speculative_decoding")
            self.speculation = speculation or self.speculation
        if (error := event.get("error")) is not None:
            self.error = words_in(error)
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        return isinstance(choice, dict) and self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> bool:
        if reason := choice.get("finish_reason"):
            self.finish_reason = _name(reason) or self.finish_reason
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice
        thought = delta.get("reasoning") or delta.get("reasoning_content")  # two names of one field
        before = len(self.parts)
        for piece in (thought, delta.get("content"), delta.get("text")):
            if piece and isinstance(piece, str):
                self.parts.append(self._counted(piece))
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
            if len(self.calls) > MAX_CALLS:
                raise BrokenStreamError(f"more than {MAX_CALLS} tool calls")
            call.names.append(self._counted(_string(function.get("name"))))
            call.pieces.append(self._counted(_string(function.get("arguments"))))
            came = True
        return came

    def _counted(self, piece: str) -> str:
        self.characters += len(piece)
        if self.characters > MAX_ANSWER_CHARS:
            raise BrokenStreamError(f"an answer of more than {MAX_ANSWER_CHARS:,} characters")
        return piece


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _name(value: Any) -> str | None:
    return value[:MAX_LABEL_CHARS] if isinstance(value, str) else None


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None
