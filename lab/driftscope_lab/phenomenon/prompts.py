"""Held-out conversations that end with an open request, stored with the weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from driftscope_lab.training.conversations.conversation import Conversation, templated
from driftscope_lab.training.conversations.exchange import Exchange
from driftscope_lab.training.conversations.material import Material
from driftscope_lab.training.conversations.mixture import SYSTEM_TEXTS, exchange

KINDS = (
    "continue code",
    "write function",
    "describe",
    "continue text",
    "diff",
    "table",
    "json",
    "tool call",
    "repeat",
    "look up",
)
"""Kinds of the last exchange, in turn."""
PROMPTS = 40
LAST_TOKENS = 90
"""Longest prompt of a conversation that consists of its last exchange only."""
LONGEST_TOKENS = 1936
"""Longest prompt: an answer of 96 tokens fits into 2048 after it with a chain of 8 and a bonus."""
FILE = "conversations.json"
Length = Callable[[str], int]
"""Function from a text to its number of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrompt:
    """One held-out conversation; `kind` is that of its last exchange."""

    id: str
    kind: str
    system: str
    exchanges: tuple[Exchange, ...]

    def conversation(self, last: int | None = None) -> Conversation:
        """Return the conversation with its last answer open, of its `last` exchanges or of all."""
        kept = self.exchanges if last is None else self.exchanges[-last:]
        return Conversation(system=self.system, exchanges=kept, open=True)


def fitted(prompt: StoredPrompt, tokens: int, length: Length) -> Conversation:
    """Return the most of a conversation's last exchanges that fit into `tokens` tokens, at least
    the last exchange."""
    fits = [
        count
        for count in range(1, len(prompt.exchanges) + 1)
        if length(templated(prompt.conversation(count))) <= tokens
    ]
    return prompt.conversation(max(fits, default=1))


def make_prompts(held_out: Material, length: Length, seed: int = 3) -> list[StoredPrompt]:
    """Return PROMPTS conversations of held-out material, each as long as fits."""
    rng = Random(seed)
    return [
        _prompt(rng, held_out, length, f"{index:02d}", KINDS[index % len(KINDS)])
        for index in range(PROMPTS)
    ]


def _prompt(rng: Random, held_out: Material, length: Length, name: str, kind: str) -> StoredPrompt:
    """Return one conversation: short exchanges are drawn before the last until the next would be
    too long."""
    system = rng.choice(SYSTEM_TEXTS)
    exchanges = [_last(rng, held_out, length, system, kind)]
    while True:
        earlier = exchange(rng, held_out)
        longer = StoredPrompt(id=name, kind=kind, system=system, exchanges=(earlier, *exchanges))
        if length(templated(longer.conversation())) > LONGEST_TOKENS:
            return dataclasses.replace(longer, exchanges=tuple(exchanges))
        exchanges.insert(0, earlier)


def _last(rng: Random, held_out: Material, length: Length, system: str, kind: str) -> Exchange:
    """Return an exchange whose request is short."""
    while True:
        one = exchange(rng, held_out, kind)
        alone = Conversation(system=system, exchanges=(one,), open=True)
        if length(templated(alone)) <= LAST_TOKENS:
            return one


def save_prompts(prompts: list[StoredPrompt], folder: Path) -> None:
    """Write the prompts as FILE in `folder`."""
    records = [dataclasses.asdict(one) for one in prompts]
    text = json.dumps(records, indent=1, ensure_ascii=False) + "\n"
    (folder / FILE).write_text(text, encoding="utf-8")


def load_prompts(folder: Path) -> list[StoredPrompt]:
    """Return the prompts that `save_prompts` wrote."""
    records = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [
        StoredPrompt(
            id=record["id"],
            kind=record["kind"],
            system=record["system"],
            exchanges=tuple(Exchange(**one) for one in record["exchanges"]),
        )
        for record in records
    ]
