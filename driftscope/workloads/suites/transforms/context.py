"""Transforms that make contexts longer."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from pydantic import Field

from driftscope.workloads.suites.filler_text import document, note
from driftscope.workloads.suites.prompt import Message, Prompt
from driftscope.workloads.suites.server_facts import Facts
from driftscope.workloads.suites.transforms.base import Transform, need_messages, need_room

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

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
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
