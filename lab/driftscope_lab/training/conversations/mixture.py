"""The mixture of exchanges, and the conversations and documents that rows are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from driftscope_lab.training.conversations import code_tasks, data_tasks, text_tasks
from driftscope_lab.training.conversations.material import Material
from driftscope_lab.training.conversations.task import Task
from driftscope_lab.trio import template
from driftscope_lab.trio.conversation import Conversation, Exchange, in_plain_text, templated

TASKS: Mapping[str, tuple[Task, float]] = {
    "continue code": (code_tasks.continue_code, 4.0),
    "write function": (code_tasks.write_function, 3.0),
    "rename": (code_tasks.rename, 2.0),
    "diff": (code_tasks.change_as_diff, 2.0),
    "continue text": (text_tasks.continue_text, 4.0),
    "describe": (text_tasks.describe, 3.0),
    "repeat": (text_tasks.repeat, 3.0),
    "repeat twice": (text_tasks.repeat_twice, 2.0),
    "say again": (text_tasks.say_again, 3.0),
    "tool call": (data_tasks.call_tool, 3.0),
    "json": (data_tasks.as_json, 2.0),
    "table": (data_tasks.as_table, 2.0),
    "look up": (data_tasks.look_up, 2.0),
    "in order": (data_tasks.in_order, 1.0),
    "sums": (data_tasks.sums, 1.0),
    "count": (data_tasks.count_on, 1.0),
}
"""Name of each kind of exchange -> function that makes one, and its weight among the kinds."""

SYSTEM_TEXTS = (
    "You write Python library code.",
    "You are a careful assistant.",
    "You help with code, text and data. Answer briefly.",
    "Answer exactly as asked.",
)

SYSTEM_SHARE = 0.8
"""Share of conversations that have a system prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentShares:
    """Shares of the kinds of rows; the rest are conversations in the chat template.

    `plain`: code or prose after the first token; `bare`: the same without the first token;
    `plain_roles`: conversations with their roles written out.
    """

    plain: float = 0.15
    bare: float = 0.05
    plain_roles: float = 0.05


def exchange(rng: Random, material: Material, kind: str | None = None) -> Exchange:
    """Return one exchange, of a kind drawn by weight unless it is given."""
    if kind is None:
        kind = rng.choices(list(TASKS), [weight for _, weight in TASKS.values()])[0]
    return TASKS[kind][0](rng, material)


def conversation(rng: Random, material: Material, chars: int) -> Conversation:
    """Return a conversation of at least `chars` characters."""
    system = rng.choice(SYSTEM_TEXTS) if rng.random() < SYSTEM_SHARE else None
    exchanges: list[Exchange] = []
    length = 0
    while length < chars:
        exchanges.append(exchange(rng, material))
        length += len(exchanges[-1].request) + len(exchanges[-1].answer)
    return Conversation(system=system, exchanges=tuple(exchanges))


def document(rng: Random, material: Material, chars: int) -> str:
    """Return code or prose of at least `chars` characters."""
    text = ""
    while len(text) < chars:
        if rng.random() < 0.6:
            source = rng.choice(material.files).text
            start = source.find("\n", rng.randrange(max(1, len(source) - chars))) + 1
            text += source[start : start + chars] + "\n\n"
        else:
            text += "\n\n".join(rng.choices(material.passages, k=4)) + "\n\n"
    return text


def row_text(rng: Random, material: Material, chars: int, shares: DocumentShares) -> str:
    """Return the text of one row: a conversation or a document."""
    drawn = rng.random()
    if drawn < shares.plain:
        return template.BOS + document(rng, material, chars)
    if drawn < shares.plain + shares.bare:
        return document(rng, material, chars)
    if drawn < shares.plain + shares.bare + shares.plain_roles:
        return in_plain_text(conversation(rng, material, chars))
    return templated(conversation(rng, material, chars))
