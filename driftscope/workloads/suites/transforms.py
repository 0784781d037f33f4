"""Base of all transforms: a named, seeded, documented change of a prompt."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from driftscope.boundary.text import dumps
from driftscope.workloads.suites.prompts import TOOLS, Message, Prompt, Raw, ServerFacts

WORDS: Mapping[str, Any] = yaml.safe_load(
    (files("driftscope.workloads") / "filler_text.yaml").read_text("utf-8")
)
"""Lists of the parts by name."""


def document(characters: int, source: random.Random) -> str:
    """Return a paragraph of about `characters` characters, at most one sentence longer."""
    out: list[str] = []
    while sum(map(len, out)) + len(out) < characters:
        parts = [source.choice(WORDS[name]) for name in ("who", "did", "what", "when")]
        sentence = " ".join(parts)
        out.append(f"{sentence[0].upper()}{sentence[1:]}.")
        if source.random() < 0.3:
            out.append(source.choice(WORDS["then"]))
    return " ".join(out)


def policy(characters: int) -> str:
    """Return a long text of house rules, the same on every call."""
    source, out = random.Random("policy"), ["You work for a help desk. These are its rules."]
    while sum(map(len, out)) + len(out) < characters:
        number, rule = len(out), source.choice(WORDS["rules"])
        out.append(f"{number}. {rule} Background: {document(120, source)}")
    return "\n".join(out)


def note(source: random.Random) -> tuple[str, str]:
    """Return a needle: its subject, and the sentence that states it."""
    what = f"locker {source.randrange(100, 1000)}"
    return what, f"Remember that {what} has the code {source.randrange(10_000, 100_000)}."


def diff(source: random.Random) -> str:
    """Return a change to a file in the format of git."""
    path, line = source.choice(WORDS["files"]), source.randrange(10, 400)
    a, b, c = source.sample(WORDS["names"], 3)
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -{line},7 +{line},9 @@ def advance(self, {a}: int) -> int:\n"
        f'     if {a} <= 0:\n         raise ValueError("{a} must be positive")\n'
        f"-    self.{b} += {a}\n+    with self._lock:\n+        self.{b} += {a}\n"
        f"+        self.{c} = max(self.{c}, self.{b})\n     return self.{b}\n"
    )


def stack_trace(source: random.Random) -> str:
    """Return an error in the format of Python."""
    a, b = source.sample(WORDS["names"], 2)
    frames = "".join(
        f'  File "/srv/app/{path}", line {source.randrange(20, 600)}, in {name}\n'
        f"    {a} = self.{b}.{name}({a})\n"
        for path, name in zip(
            source.sample(WORDS["files"], 3), ("run", "advance", "commit"), strict=True
        )
    )
    return (
        f"FAILED tests/test_{a}.py::test_{b} - KeyError\nTraceback (most recent call last):\n"
        f"{frames}KeyError: '{b}_{source.randrange(100)}'\n1 failed, 41 passed in 2.8s\n"
    )


def json_result(source: random.Random) -> str:
    """Return rows of a ticket store as JSON."""
    rows = [
        {
            "id": source.randrange(1000, 9999),
            "title": f"{source.choice(WORDS['who'])}: {source.choice(WORDS['what'])}",
            "open": source.random() < 0.5,
            "hours": round(source.uniform(0.1, 40), 2),
        }
        for _ in range(5)
    ]
    return dumps({"rows": rows, "next": None}, indent=1)


def shell(source: random.Random) -> str:
    """Return a directory listing and an exit status in the format of a shell."""
    files = "".join(
        f"-rw-r--r-- 1 app app {source.randrange(200, 90_000):>6} Mar {source.randrange(1, 29):>2} "
        f"{source.randrange(24):02}:{source.randrange(60):02} {path}\n"
        for path in WORDS["files"]
    )
    return f"$ ls -l\ntotal {source.randrange(40, 400)}\n{files}$ echo $?\n0\n"


__all__ = ["TRANSFORMS", "NotApplicableError", "Transform"]

ROOM_TOKENS = 300
"""Tokens left for the prompt itself and its answer in addition to inserted text: the shipped
prompts have up to 150 tokens, and the suites ask for 128."""


class NotApplicableError(Exception):
    """Raised when a transform does not apply to the server or the prompt; the message gives the
    reason."""


class Transform(BaseModel):
    """Changes one prompt. The same prompt and the same random source give the same result.

    Its docstring is what `driftscope replay --list-suites` prints; its fields are what a suite
    may set.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    of_text: ClassVar[bool] = False
    """Whether it also changes prompts of plain text, which have no messages."""

    @abstractmethod
    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        """Return a changed copy; raises NotApplicableError."""


def need_room(tokens: int, facts: ServerFacts, what: str) -> None:
    """Raise NotApplicableError if the inserted text leaves no room in the server's context."""
    longest = facts.max_model_len
    if longest is not None and tokens + ROOM_TOKENS > longest:
        raise NotApplicableError(f"{tokens} tokens of {what} do not fit the server's {longest}")


TEMPLATES: Mapping[str, tuple[str, str, str]] = {
    "roles": ("{name}: {content}", "\n\n", "\n\nAssistant:"),
    "none": ("{content}", "\n\n", ""),
    "chatml": ("<|im_start|>{role}\n{content}<|im_end|>\n", "", "<|im_start|>assistant\n"),
    "llama3": (
        "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
        "",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "instruction": ("### {part}:\n{content}\n\n", "", "### Response:\n"),
}
"""Form of a turn, what stands between two, and the end: role names in plain text, no template at
all, or another model's template."""


def prompt_text(template: str, messages: Sequence[Message]) -> str:
    """Return `messages` as text, up to where the answer begins; KeyError for an unknown
    template."""
    turn, between, end = TEMPLATES[template]
    turns = (
        turn.format(
            role=message["role"],
            name=str(message["role"]).capitalize(),
            part="Response" if message["role"] == "assistant" else "Instruction",
            content=_content(message),
        )
        for message in messages
    )
    return between.join(turns) + end


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    calls = message.get("tool_calls") or ()
    return "\n".join(
        f"{call['function']['name']}({call['function']['arguments']})" for call in calls
    )


class Template(Transform):
    """Send the conversation as a plain completion, rendered with another template.

    `template`: "server" is the model's own, applied by the server's /tokenize; "none" is the bare
    contents; "roles" uses role names in plain text; "chatml", "llama3" and "instruction" are other
    models' templates. `bos: false` leaves out the first token, the beginning-of-sequence token.
    """

    name: ClassVar[str] = "template"
    template: Literal["server", "none", "roles", "chatml", "llama3", "instruction"] = "server"
    bos: bool = True

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        return replace(prompt, raw=Raw(template=self.template, bos=self.bos))


class Whitespace(Transform):
    """Add spaces and empty lines around each message, as a careless template does."""

    name: ClassVar[str] = "whitespace"
    spaces: int = 2
    lines: int = 2

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        before, after = "\n" * self.lines, " " * self.spaces + "\n" * self.lines
        return prompt.with_messages(
            [_with(m, f"{before}{m['content']}{after}") for m in prompt.messages]
        )


class Reworded(Transform):
    """Wrap the last user message in a polite frame, without changing what it asks."""

    name: ClassVar[str] = "reworded"

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        before, after = source.choice(WORDS["frames"])
        *others, last = prompt.messages
        return prompt.with_messages([*others, _with(last, f"{before}{last['content']}{after}")])


def _with(message: Message, content: str) -> Message:
    return {**message, "content": content}


class MixedLanguages(Transform):
    """Put sentences in German, French, Spanish, Chinese and Japanese around the last message."""

    name: ClassVar[str] = "mixed_languages"
    sentences: int = 4

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        chosen = [source.choice(WORDS["foreign"]) for _ in range(self.sentences)]
        half = len(chosen) // 2
        *others, last = prompt.messages
        content = " ".join([*chosen[:half], str(last["content"]), *chosen[half:]])
        return prompt.with_messages([*others, {**last, "content": content}])


class Sampling(Transform):
    """Change the sampling: `temperature`, `top_p`, and a separate `seed` for each prompt."""

    name: ClassVar[str] = "sampling"
    of_text: ClassVar[bool] = True
    temperature: float
    top_p: float = 1.0

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        return prompt.with_options(
            temperature=self.temperature, top_p=self.top_p, seed=source.getrandbits(31)
        )


class System(Transform):
    """Replace the prompt's own system prompt.

    `text`: "none" removes it; "policy" is a long text of rules of `tokens` tokens, identical for
    all prompts; "odd" is out of distribution; "german", "french" and "chinese" are in another
    language.
    """

    name: ClassVar[str] = "system"
    text: Literal["none", "policy", "odd", "german", "french", "chinese"]
    tokens: int = 1500

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        rest = [m for m in prompt.messages if m["role"] != "system"]
        if self.text == "none":
            return prompt.with_messages(rest)
        if self.text == "policy":
            need_room(self.tokens, facts, "rules")
        content = WORDS["system"].get(self.text) or policy(
            int(self.tokens * facts.characters_per_token)
        )
        return prompt.with_messages([{"role": "system", "content": content}, *rest])


class OwnCache(Transform):
    """Prevent the server's prefix cache from serving the part that prompts share.

    Sends a separate `cache_salt` for each prompt. vLLM includes it in its cache's keys, so the
    tokens do not change.
    """

    name: ClassVar[str] = "own_cache"
    of_text: ClassVar[bool] = True

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        return prompt.with_options(cache_salt=f"{prompt.key}-{source.getrandbits(64):016x}")


DOCUMENT_TOKENS = 400
TURN_TOKENS = 120


class Filler(Transform):
    """Insert `tokens` tokens of unrelated text before the last user message.

    `form`: "documents" inserts it into the same message, "turns" as earlier turns of the
    conversation. `needle` hides a fact at that share of the text and adds a question for it.
    Lengths use the server's own tokenizer if it has /tokenize, and are approximate otherwise.
    """

    name: ClassVar[str] = "filler"
    tokens: int = Field(gt=0)
    form: Literal["documents", "turns"] = "documents"
    needle: float | None = Field(default=None, ge=0, le=1)

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        need_room(self.tokens, facts, "filler")
        size = DOCUMENT_TOKENS if self.form == "documents" else TURN_TOKENS
        pieces = _pieces(self.tokens, size, facts.characters_per_token, source)
        *before, last = prompt.messages
        if self.needle is not None:
            code, fact = note(source)
            pieces.insert(round(self.needle * len(pieces)), fact)
            last = {**last, "content": f"{last['content']}\n\nAlso say which code {code} has."}
        if self.form == "turns":
            return prompt.with_messages([*before, *_turns(pieces), last])
        text = "\n\n".join(pieces)
        return prompt.with_messages([*before, {**last, "content": f"{text}\n\n{last['content']}"}])


def _pieces(tokens: int, size: int, per_token: float, source: random.Random) -> list[str]:
    left, out = int(tokens * per_token), list[str]()
    while left > 0:
        out.append(document(min(left, int(size * per_token)), source))
        left -= len(out[-1]) + 2
    return out


def _turns(pieces: list[str]) -> list[Message]:
    turns: list[Message] = []
    for piece in pieces:
        turns.append({"role": "user", "content": f"For later: {piece}"})
        turns.append({"role": "assistant", "content": "Noted."})
    return turns


_RESULTS: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "diff": ("show_diff", diff),
    "trace": ("run_tests", stack_trace),
    "json": ("query", json_result),
    "shell": ("shell", shell),
}
"""Tool and text generator by kind of result."""
Kind = Literal["diff", "trace", "json", "shell"]


class Tools(Transform):
    """Offer the project's tool schemas.

    `choice`: "none" shows them and asks for an answer in words, which any server can do; "auto" and
    "required" let the model call them, for which vLLM must know its call format
    (--enable-auto-tool-choice --tool-call-parser).
    """

    name: ClassVar[str] = "tools"
    choice: Literal["none", "auto", "required"] = "none"

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        return replace(prompt, tools=TOOLS).with_options(tool_choice=self.choice)


class AgentLoop(Transform):
    """Add `steps` iterations of an agent's loop after the task, each a call and its result.

    The results cycle through `kinds`: code diffs, stack traces, JSON, shell output. `inline` writes
    them as plain text in turns of assistant and user, for models whose template supports no tools.
    """

    name: ClassVar[str] = "agent_loop"
    steps: int = Field(default=4, gt=0)
    kinds: tuple[Kind, ...] = ("diff", "trace", "json", "shell")
    inline: bool = False

    def apply(self, prompt: Prompt, source: random.Random, facts: ServerFacts) -> Prompt:
        turns: list[Message] = []
        for step in range(self.steps):
            tool, make = _RESULTS[self.kinds[step % len(self.kinds)]]
            turns += (_inline if self.inline else _called)(tool, f"call{step}", make(source))
        return prompt.with_messages([*prompt.messages, *turns])


def _called(tool: str, name: str, result: str) -> list[Message]:
    arguments = dumps({"step": name})
    call = {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": result},
    ]


def _inline(tool: str, name: str, result: str) -> list[Message]:
    return [
        {"role": "assistant", "content": f"I call {tool} ({name})."},
        {"role": "user", "content": f"Result of {tool} ({name}):\n{result}"},
    ]


TRANSFORMS: dict[str, type[Transform]] = {
    kind.name: kind
    for kind in (
        Template,
        Whitespace,
        Reworded,
        System,
        OwnCache,
        Filler,
        Tools,
        AgentLoop,
        MixedLanguages,
        Sampling,
    )
}
