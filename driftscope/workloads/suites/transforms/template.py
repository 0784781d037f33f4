"""Transforms of the chat template, where template mistakes are made."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar, Literal

from driftscope.workloads.suites.prompt import Message, Prompt, Raw
from driftscope.workloads.suites.server_facts import Facts
from driftscope.workloads.suites.transforms.base import Transform, need_messages


class Template(Transform):
    """Send the conversation as a plain completion, rendered with another template.

    `template`: "server" is the model's own, applied by the server's /tokenize; "none" is the bare
    contents; "roles" uses role names in plain text; "chatml", "llama3" and "instruction" are other
    models' templates. `bos: false` leaves out the first token, the beginning-of-sequence token.
    """

    name: ClassVar[str] = "template"
    template: Literal["server", "none", "roles", "chatml", "llama3", "instruction"] = "server"
    bos: bool = True

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
        return replace(prompt, raw=Raw(template=self.template, bos=self.bos))


class Whitespace(Transform):
    """Add spaces and empty lines around each message, as a careless template does."""

    name: ClassVar[str] = "whitespace"
    spaces: int = 2
    lines: int = 2

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
        before, after = "\n" * self.lines, " " * self.spaces + "\n" * self.lines
        return prompt.with_messages(
            [_with(m, f"{before}{m['content']}{after}") for m in prompt.messages]
        )


class Reworded(Transform):
    """Wrap the last user message in a polite frame, without changing what it asks."""

    name: ClassVar[str] = "reworded"

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        need_messages(prompt, self.name)
        before, after = source.choice(_FRAMES)
        *others, last = prompt.messages
        return prompt.with_messages([*others, _with(last, f"{before}{last['content']}{after}")])


_FRAMES = (
    ("Hello! I hope this finds you well. Here is what I need:\n\n", "\n\nThank you very much."),
    ("A colleague passed this on to me, word for word:\n\n", "\n\nCan you take it from here?"),
    ("Task (reply below the line):\n\n", "\n\n---"),
)


def _with(message: Message, content: str) -> Message:
    return {**message, "content": content}
