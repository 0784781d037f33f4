"""Makes the held-out prompts: conversations of files that training never saw."""

from __future__ import annotations

import dataclasses
from random import Random

from driftscope_lab.training.conversations.material import Material
from driftscope_lab.training.conversations.mixture import SYSTEM_TEXTS, exchange
from driftscope_lab.trio.conversation import Conversation, Exchange, templated
from driftscope_lab.trio.prompts import SHORT_TOKENS, Length, Prompt, fitting

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
PROMPTS = 64
LAST_TOKENS = 90
"""Longest prompt of a conversation that consists of its last exchange only."""
LONGEST_TOKENS = 1936
"""Longest prompt: an answer of 96 tokens fits into 2048 after it with a chain of 8 and a bonus."""


def make_prompts(held_out: Material, length: Length, seed: int = 3) -> list[Prompt]:
    """Return PROMPTS conversations of held-out material, each as long as fits."""
    rng = Random(seed)
    return [
        _prompt(rng, held_out, length, f"{index:02d}", KINDS[index % len(KINDS)])
        for index in range(PROMPTS)
    ]


def _prompt(rng: Random, held_out: Material, length: Length, name: str, kind: str) -> Prompt:
    """Return one conversation: short exchanges are drawn before the last until the next would be
    too long."""
    system = rng.choice(SYSTEM_TEXTS)
    exchanges = [_last(rng, held_out, length, system, kind)]
    while True:
        earlier = exchange(rng, held_out)
        longer = Conversation(system=system, exchanges=(earlier, *exchanges), open=True)
        if length(templated(longer)) > LONGEST_TOKENS:
            break
        exchanges.insert(0, earlier)
    prompt = Prompt(id=name, kind=kind, system=system, short=1, exchanges=tuple(exchanges))
    return dataclasses.replace(prompt, short=fitting(prompt, SHORT_TOKENS, length))


def _last(rng: Random, held_out: Material, length: Length, system: str, kind: str) -> Exchange:
    """Return an exchange whose request is short."""
    while True:
        one = exchange(rng, held_out, kind)
        alone = Conversation(system=system, exchanges=(one,), open=True)
        if length(templated(alone)) <= LAST_TOKENS:
            return one
