"""Transforms of the system prompt."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from driftscope.workloads.suites.filler_text import policy
from driftscope.workloads.suites.prompt import Prompt
from driftscope.workloads.suites.server_facts import Facts
from driftscope.workloads.suites.transforms.base import Transform, need_messages, need_room

_SHORT = {
    "odd": "You are the keeper of a lighthouse in the year 2291. You answer as if every question "
    "came by signal lamp, and you mention the fog.",
    "german": "Du bist ein sorgfältiger Assistent. Antworte knapp, sachlich und vollständig und "
    "nenne am Ende, was du nicht weißt.",
    "french": "Tu es un assistant attentif. Réponds brièvement, avec précision, et dis à la fin ce "
    "que tu ne sais pas.",
    "chinese": "你是一位细心的助手。请简洁、准确地回答，并在最后说明你不知道的内容。",
}


class System(Transform):
    """Replace the prompt's own system prompt.

    `text`: "none" removes it; "policy" is a long text of rules of `tokens` tokens, identical for
    all prompts; "odd" is out of distribution; "german", "french" and "chinese" are in another
    language.
    """

    name: ClassVar[str] = "system"
    text: Literal["none", "policy", "odd", "german", "french", "chinese"]
    tokens: int = 1500

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
        rest = [m for m in prompt.messages if m["role"] != "system"]
        if self.text == "none":
            return prompt.with_messages(rest)
        if self.text == "policy":
            need_room(self.tokens, facts, "rules")
        content = _SHORT.get(self.text) or policy(int(self.tokens * facts.characters_per_token))
        return prompt.with_messages([{"role": "system", "content": content}, *rest])


class OwnCache(Transform):
    """Prevent the server's prefix cache from serving the part that prompts share.

    Sends a separate `cache_salt` for each prompt. vLLM includes it in its cache's keys, so the
    tokens do not change.
    """

    name: ClassVar[str] = "own_cache"

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        return prompt.with_options(cache_salt=f"{prompt.key}-{source.getrandbits(64):016x}")
