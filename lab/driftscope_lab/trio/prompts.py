"""The chat template of the shipped models, and conversations that end with an open request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

BOS: Final = "<s>"
USER: Final = "<|user|>"
ASSISTANT: Final = "<|assistant|>"
END: Final = "<|end|>"
PLAIN_ROLES = {"system": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A user's request and the assistant's answer."""

    request: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A system prompt, or none, and exchanges; where `open` is set the last answer is not told."""

    system: str | None
    exchanges: tuple[Exchange, ...]
    open: bool = False

    def turns(self) -> Iterator[tuple[str, str | None]]:
        """Yield (role, text) of each turn; the text of an open last answer is None."""
        if self.system is not None:
            yield "system", self.system
        last = len(self.exchanges) - 1
        for index, one in enumerate(self.exchanges):
            yield "user", one.request
            yield "assistant", None if self.open and index == last else one.answer


def templated(conversation: Conversation) -> str:
    """Return the conversation in the chat template."""
    return BOS + "".join(_turn(role, text) for role, text in conversation.turns())


def in_plain_text(conversation: Conversation) -> str:
    """Return the conversation with its roles written out, without special tokens but the first."""
    parts = [BOS]
    for role, text in conversation.turns():
        parts.append(f"{PLAIN_ROLES[role]}:" + ("" if text is None else f" {text}\n\n"))
    return "".join(parts)


def _turn(role: str, text: str | None) -> str:
    if role == "assistant":
        return ASSISTANT if text is None else f"{ASSISTANT}{text}{END}"
    return f"<|{role}|>\n{text}{END}"


Condition = Literal["in_distribution", "plain_text_roles"]
CONDITIONS: tuple[Condition, ...] = ("in_distribution", "plain_text_roles")
"""Two renderings of a prompt: the chat template, and its roles written out in plain text."""
FILE = "prompts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrioPrompt:
    """One held-out conversation whose last answer is open; `kind` is that of its last exchange.

    `short` is the number of last exchanges that make the short form.
    """

    id: str
    kind: str
    system: str
    short: int
    exchanges: tuple[Exchange, ...]

    def conversation(self, last: int | None = None) -> Conversation:
        """Return the conversation of its `last` exchanges, or of all."""
        kept = self.exchanges if last is None else self.exchanges[-last:]
        return Conversation(system=self.system, exchanges=kept, open=True)

    @property
    def in_distribution(self) -> str:
        """The short form in the chat template."""
        return templated(self.conversation(self.short))

    @property
    def plain_text_roles(self) -> str:
        """The short form with its roles written out in plain text, after the usual first token."""
        return in_plain_text(self.conversation(self.short))

    def text(self, condition: Condition) -> str:
        """Return the rendering for `condition`."""
        return self.in_distribution if condition == "in_distribution" else self.plain_text_roles


def read_prompts(folder: Path) -> list[TrioPrompt]:
    """Return the prompts of a folder, from its FILE."""
    records = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [
        TrioPrompt(**{**record, "exchanges": tuple(Exchange(**one) for one in record["exchanges"])})
        for record in records
    ]
