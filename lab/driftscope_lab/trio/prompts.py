"""Held-out conversations that end with an open request, stored with the weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from driftscope_lab.trio.conversation import Conversation, Exchange, in_plain_text, templated

Condition = Literal["in_distribution", "plain_text_roles"]
CONDITIONS: tuple[Condition, ...] = ("in_distribution", "plain_text_roles")
"""Two renderings of a prompt: the chat template, and its roles written out in plain text."""
FILE = "prompts.json"
SHORT_TOKENS = 256
"""Longest prompt of the short form in the chat template, unless its last exchange is longer."""
Length = Callable[[str], int]
"""Function from a text to its number of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
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


def fitting(prompt: Prompt, tokens: int, length: Length) -> int:
    """Return the largest number of last exchanges that fit into `tokens` tokens in the chat
    template, at least one."""
    fits = [
        count
        for count in range(1, len(prompt.exchanges) + 1)
        if length(templated(prompt.conversation(count))) <= tokens
    ]
    return max(fits, default=1)


def save_prompts(prompts: Sequence[Prompt], folder: Path) -> None:
    """Write the prompts as FILE in `folder`, one in a line."""
    lines = [json.dumps(dataclasses.asdict(one), ensure_ascii=False) for one in prompts]
    (folder / FILE).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def read_prompts(folder: Path) -> list[Prompt]:
    """Return the prompts that `save_prompts` wrote."""
    records = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [
        Prompt(**{**record, "exchanges": tuple(Exchange(**one) for one in record["exchanges"])})
        for record in records
    ]
