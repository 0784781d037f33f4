"""Transforms of language and sampling."""

from __future__ import annotations

import random
from typing import ClassVar

from driftscope.workloads.suites.filler_text import FOREIGN
from driftscope.workloads.suites.prompt import Prompt
from driftscope.workloads.suites.server_facts import Facts
from driftscope.workloads.suites.transforms.base import Transform, need_messages


class MixedLanguages(Transform):
    """Put sentences in German, French, Spanish, Chinese and Japanese around the last message."""

    name: ClassVar[str] = "mixed_languages"
    sentences: int = 4

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
        chosen = [source.choice(FOREIGN) for _ in range(self.sentences)]
        half = len(chosen) // 2
        *others, last = prompt.messages
        content = " ".join([*chosen[:half], str(last["content"]), *chosen[half:]])
        return prompt.with_messages([*others, {**last, "content": content}])


class Sampling(Transform):
    """Change the sampling: `temperature`, `top_p`, and a separate `seed` for each prompt."""

    name: ClassVar[str] = "sampling"
    temperature: float
    top_p: float = 1.0

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        return prompt.with_options(
            temperature=self.temperature, top_p=self.top_p, seed=source.getrandbits(31)
        )
