"""A prompt: the content of one request, independent of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Message = Mapping[str, Any]
"""A message as in the chat API: role, content and further fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Expected properties of an answer that can be checked; None: nothing is expected."""

    json: bool | None = None
    """Whether the answer is one JSON value."""
    schema: Mapping[str, Any] | None = None
    """JSON Schema that the answer must fit."""
    tool: str | None = None
    """Function that the answer must call, with arguments that fit its schema."""
    min_tokens: int | None = None
    """Fewest tokens; an answer that stops by itself before is too short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Rendering of messages into the text of a plain completion, instead of the server's chat
    endpoint.

    The server's /tokenize renders its own template, so that conditions differ in their tokens and
    in nothing else.
    """

    template: str = "server"
    """Template: "server" is the server's own chat template; else one of
    `driftscope.workloads.suites.transforms`."""
    bos: bool = True
    """Whether the first token is the model's BOS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt. Transforms return changed copies; `key` pairs a prompt with its copies.

    ==============  ================================================================
    `messages`      a chat; with `raw` it is sent as a plain completion
    `text`          a plain completion, special tokens spelt out; no messages then
    ==============  ================================================================
    """

    key: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    raw: Raw | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    expect: Expect = field(default_factory=Expect)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request's body, such as temperature; they override the suite's."""
    category: str | None = None

    def with_messages(self, messages: Sequence[Message]) -> Prompt:
        """Return the prompt with another conversation."""
        return replace(self, messages=tuple(messages))

    def with_options(self, **options: Any) -> Prompt:
        """Return the prompt with further fields of the request's body set."""
        return replace(self, options={**self.options, **options})

    @property
    def is_text(self) -> bool:
        """Whether the prompt is a plain text, which no transform of messages can change."""
        return self.text is not None


def chat(key: str, *turns: str, system: str | None = None, **more: Any) -> Prompt:
    """Return a prompt of alternating turns, the user's first."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for number, turn in enumerate(turns):
        messages.append({"role": "assistant" if number % 2 else "user", "content": turn})
    return Prompt(key=key, messages=tuple(messages), **more)


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_STRING = {"type": "string"}
TOOLS: tuple[Mapping[str, Any], ...] = (
    _tool(
        "shell",
        "Run a command and return what it prints.",
        ["command"],
        command=_STRING,
        timeout_s={"type": "integer", "minimum": 1},
    ),
    _tool(
        "read_file",
        "Return lines of a file.",
        ["path"],
        path=_STRING,
        first={"type": "integer"},
        last={"type": "integer"},
    ),
    _tool("show_diff", "Show what changed since a commit.", ["commit"], commit=_STRING),
    _tool("run_tests", "Run tests and return the failures.", ["pattern"], pattern=_STRING),
    _tool(
        "query",
        "Ask the ticket store.",
        ["table", "limit"],
        table={"enum": ["tickets", "users", "builds"]},
        where=_STRING,
        limit={"type": "integer", "minimum": 1, "maximum": 1000},
    ),
    _tool(
        "weather",
        "Say the weather of a city.",
        ["city", "unit"],
        city=_STRING,
        unit={"enum": ["celsius", "fahrenheit"]},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a server; None: it does not report it."""

    url: str
    """URL of the server, without user and password."""
    model: str
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens."""
    version: str | None = None
    kv_tokens: int | None = None
    """Number of tokens that its KV cache holds, those of the drafter included."""
    speculates: bool | None = None
    """Whether it was started with a drafter."""
    started_s: float | None = None
    """Time of its start, in seconds since the Unix epoch."""
    characters_per_token: float = 4.0
    """Characters of driftscope's filler text per token; 4, the rule of thumb for English, if the
    server has no /tokenize."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        return asdict(self)
