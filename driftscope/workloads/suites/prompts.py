"""Prompts, each the content of one request: of the shipped sets, data sets, logs and reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from driftscope.boundary.bounds import MAX_INPUT_BYTES
from driftscope.boundary.files import open_regular, parse_json, read_bytes, read_json
from driftscope.distributions import needs_lab
from driftscope.errors import UsageError

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
    def last_text(self) -> str:
        """The text of a plain completion, or of a chat's last message."""
        if self.text is not None or not self.messages:
            return self.text or ""
        content = self.messages[-1].get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        return " ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))

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


def _tools() -> Iterator[Mapping[str, Any]]:
    for tool in yaml.safe_load((files("driftscope.workloads") / "tools.yaml").read_text("utf-8")):
        parameters = {
            "type": "object",
            "properties": tool["properties"],
            "required": tool["required"],
            "additionalProperties": False,
        }
        function = {key: tool[key] for key in ("name", "description")}
        yield {"type": "function", "function": {**function, "parameters": parameters}}


TOOLS: tuple[Mapping[str, Any], ...] = tuple(_tools())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
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


_KEYS = ("question_id", "custom_id", "uuid", "id", "request_id")
_ROLES = {
    **{name: name for name in ("user", "assistant", "system", "tool")},
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard"), "assistant"),
    "human": "user",
}
_SAMPLING = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed")
_KEPT = frozenset(
    (*_SAMPLING, "tool_choice", "response_format", "presence_penalty", "frequency_penalty")
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
    messages = _without_final_answers(body.get("messages"))
    if not messages:
        return None
    tools = tuple(t for t in body.get("tools") or () if isinstance(t, dict))
    return Prompt(key=key, messages=messages, tools=tools, options=options, category=category)


def _without_final_answers(messages: Any) -> tuple[Message, ...]:
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


Row = Mapping[str, Any]


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts in a file of any of the formats above; raises UsageError.

    A row without a prompt is skipped; a file without any prompt is refused.
    """
    try:
        rows = list(_READERS[path.suffix.lower()](path))
    except KeyError as error:
        raise UsageError(
            f"{path}: no reader for {path.suffix or 'files without an ending'}; known are "
            f"{', '.join(_READERS)}; a .jsonl file has a line {_SHAPE} for each prompt"
        ) from error
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path}: not readable ({' '.join(str(error).split())[:200]})") from error
    candidates = [prompt_of(row, f"{path.stem}-{number}") for number, row in enumerate(rows)]
    prompts = _distinct([prompt for prompt in candidates if prompt is not None])
    if not prompts:
        raise UsageError(
            f"{path}: no prompt in its {len(rows)} rows; known are turns, prompt, conversations, "
            "messages and body (see `driftscope replay --help`)"
        )
    return prompts


def _distinct(prompts: list[Prompt]) -> list[Prompt]:
    """Return the first of the prompts with each key: a key pairs a prompt with itself."""
    return list({prompt.key: prompt for prompt in reversed(prompts)}.values())[::-1]


def _parquet(path: Path) -> Iterable[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Row] = pq.read_table(pa.py_buffer(read_bytes(path))).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    return rows


def _jsonl(path: Path) -> Iterable[Row]:
    with (
        open_regular(path) as descriptor,
        os.fdopen(os.dup(descriptor), encoding="utf-8") as handle,
    ):
        for number, line in enumerate(handle, start=1):
            if line.strip():
                try:
                    yield _mapping(parse_json(line))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error


def _json(path: Path) -> Iterable[Row]:
    value = read_json(path, limit=MAX_INPUT_BYTES)
    if isinstance(value, dict):
        value = value.get("requests") or value.get("data") or [value]
    if not isinstance(value, list):
        raise ValueError("neither a list nor an object")
    return [_mapping(row) for row in value]


def _mapping(row: Any) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"a row that is not an object such as {_SHAPE}")
    return row


_SHAPE = '{"prompt": "Hello"}'
_READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".json": _json,
}


TRIO = "trio"
"""Held-out prompts of driftscope's own small models, for which nothing else is suitable."""


def prompts_of(name: str, folder: Path | None = None) -> list[Prompt]:
    """Return a shipped set, or the prompts in a file that a reader knows; raises UsageError."""
    if name == TRIO:
        with needs_lab():
            from driftscope_lab.trio import load_prompts

        return [
            chat(
                prompt.id,
                prompt.exchanges[-1].request,
                system=prompt.system,
                category=prompt.kind,
            )
            for prompt in load_prompts()
        ]
    if name in shipped_sets():
        text = (files("driftscope.workloads") / "prompts" / f"{name}.yaml").read_text("utf-8")
        return [_prompt(name, number, entry) for number, entry in enumerate(yaml.safe_load(text))]
    path = Path(name) if folder is None else folder / name
    if not path.exists():
        raise UsageError(
            f"prompts {name}: neither a shipped set ({', '.join([*shipped_sets(), TRIO])}) nor a "
            "file"
        )
    return read_prompts(path)


def shipped_sets() -> list[str]:
    """Return the names of the sets that are shipped with driftscope."""
    folder = files("driftscope.workloads") / "prompts"
    return sorted(
        path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml")
    )


def _prompt(name: str, number: int, entry: Mapping[str, Any]) -> Prompt:
    turns = entry.get("turns") or [entry["user"]]
    return chat(
        f"{name}-{number:02d}",
        *turns,
        system=entry.get("system"),
        category=entry.get("category"),
        expect=Expect(**entry.get("expect", {})),
        tools=TOOLS if entry.get("tools") else (),
    )
