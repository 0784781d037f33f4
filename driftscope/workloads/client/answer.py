"""An answer, assembled piece by piece from its stream, and checks of it that need no judge."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftscope.boundary.bounds import (
    MAX_ANSWER_BYTES,
    MAX_ANSWER_CHARS,
    MAX_ANSWER_EVENTS,
    MAX_K,
    MAX_LABEL_CHARS,
    MAX_ROUNDS,
    MAX_TOKENS,
    first_fault,
)
from driftscope.boundary.text import dumps
from driftscope.workloads.suites.prompts import Prompt

DONE = b"[DONE]"
_DATA = b"data:"
MAX_EVENT_BYTES = 16 << 20
"""Limit of one event, so that an event that never ends does not fill the memory."""


class BrokenStreamError(Exception):
    """Raised when the data is not a stream of JSON events."""


class Events:
    """Splits a stream into events; `done` after its last event, `open` while an event is
    unfinished."""

    __slots__ = ("_bytes", "_count", "_rest", "_rest_bytes", "done")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """Pieces of an unfinished line, joined once it ends."""
        self._rest_bytes = self._bytes = self._count = 0
        self.done = False

    @property
    def open(self) -> bool:
        """Whether bytes of an unfinished event have arrived."""
        return any(piece.strip() for piece in self._rest)

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Return the events that `piece` completes; raises BrokenStreamError."""
        self._bytes += len(piece)
        if self._bytes > MAX_ANSWER_BYTES:
            raise BrokenStreamError(f"a stream of more than {MAX_ANSWER_BYTES:,} bytes")
        lines = self._lines(piece)
        events = []
        for line in lines:
            if line.startswith(_DATA):  # skips comments, event names and empty lines
                data = line[len(_DATA) :].strip()
                if data == DONE:
                    self.done = True
                elif data:
                    events.append(_object(data))
        self._count += len(events)
        if self._count > MAX_ANSWER_EVENTS:
            raise BrokenStreamError(f"more than {MAX_ANSWER_EVENTS:,} events")
        return events

    def _lines(self, piece: bytes) -> list[bytes]:
        """Return the lines that `piece` completes."""
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        lines = []
        if b"\n" in piece:
            lines = b"".join(self._rest).split(b"\n")
            self._rest = [lines.pop()]
            self._rest_bytes = len(self._rest[0])
        if self._rest_bytes > MAX_EVENT_BYTES:
            raise BrokenStreamError(f"an event longer than {MAX_EVENT_BYTES} bytes")
        return lines


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except ValueError as error:
        raise BrokenStreamError(f"an event that is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BrokenStreamError("an event that is not a JSON object")
    return value


_NAMES = ("error", "message", "detail")
"""Fields that hold the error text; FastAPI uses `detail`."""


def words_of(content: bytes) -> str:
    """Return the server's error text from a response body, which may be JSON or plain text."""
    try:
        body: Any = orjson.loads(content)
    except ValueError:
        body = content.decode(errors="replace")
    return words_in(body)


def words_in(value: Any) -> str:
    """Return the error text in a JSON value, on one line."""
    for name in _NAMES:
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    if not isinstance(value, str):
        try:
            value = orjson.dumps(value).decode()
        except TypeError:  # nested too deeply to serialise
            value = "an error without a message"
    return " ".join(value.split())


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
class StreamedAnswer:
    """An answer, extended by every event of a stream, up to MAX_ANSWER_CHARS characters.

    Counts of the server are kept unchecked; see `driftscope.workloads.client.answer`.
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
        return hashlib.sha256(dumps([self.text, calls]).encode()).hexdigest()[:16]

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


Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Drafted = Annotated[int, Field(ge=0, le=MAX_K)]
Rounds = Annotated[int, Field(ge=0, le=MAX_ROUNDS)]


_Histogram = Annotated[list[Rounds], Field(max_length=MAX_K + 1)]
_Length = Annotated[str, Field(pattern="^[0-9]{1,5}$")]


class _Checked(BaseModel):
    """Base model with strict JSON types; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Details(_Checked):
    cached_tokens: Tokens | None = None


class Usage(_Checked):
    """The `usage` object of an OpenAI-compatible server."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None


class Speculation(_Checked):
    """The `metrics.speculative_decoding` object, as vLLM sends it."""

    per_step_drafted: Annotated[list[Drafted], Field(max_length=MAX_ROUNDS)] | None = None
    per_step_accepted: Annotated[list[Drafted], Field(max_length=MAX_ROUNDS)] | None = None
    acceptance_histogram: _Histogram | None = None
    acceptance_histogram_by_draft_length: dict[_Length, _Histogram] | None = None
    """Histogram of the rounds that verified so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of one answer; None: the server does not report it."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    verified: list[int] | None = None
    """Verified draft tokens by round."""
    accepted: list[int] | None = None
    """Accepted tokens by round."""


def counts_of(usage: Any, speculation: Any) -> Counts:
    """Return the counts from unchecked JSON values; raises BrokenStreamError."""
    try:
        used = Usage.model_validate({} if usage is None else usage)
        drafting = Speculation.model_validate({} if speculation is None else speculation)
    except ValidationError as error:
        raise BrokenStreamError(f"impossible counts ({first_fault(error)})") from error
    verified, accepted = rounds_of(drafting)
    details = used.prompt_tokens_details
    return Counts(
        prompt_tokens=used.prompt_tokens,
        output_tokens=used.completion_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
        verified=verified,
        accepted=accepted,
    )


def rounds_of(speculation: Speculation) -> tuple[list[int] | None, list[int] | None]:
    """Return verified and accepted tokens per round; raise BrokenStreamError for more than
    MAX_ROUNDS.

    Without `per_step_...` (vLLM's level "summary") they come from the histograms by draft length;
    of a server that has only one for all rounds, what a round verified is unknown: (None,
    accepted).
    """
    verified, accepted = speculation.per_step_drafted, speculation.per_step_accepted
    if accepted and verified and len(accepted) == len(verified):
        return verified, accepted
    by_length = speculation.acceptance_histogram_by_draft_length
    split = by_length or {"": speculation.acceptance_histogram or []}
    if sum(map(sum, split.values())) > MAX_ROUNDS:
        raise BrokenStreamError(f"impossible counts (more than {MAX_ROUNDS:,} rounds)")
    rounds = sorted(
        (tokens, length)
        for length, histogram in split.items()
        for tokens, number in enumerate(histogram)
        for _ in range(number)
    )
    lengths = [int(length) for _, length in rounds] if by_length else None
    return lengths or None, [tokens for tokens, _ in rounds] or None


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


def outcome_of(prompt: Prompt, answer: StreamedAnswer, output_tokens: int | None) -> Outcome:
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


def calls_right(prompt: Prompt, answer: StreamedAnswer) -> bool:
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
