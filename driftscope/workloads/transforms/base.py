"""What a transform is: a named, seeded, documented change of a prompt."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from driftscope.workloads.prompt import Prompt
from driftscope.workloads.server import Facts


class NotApplicableError(Exception):
    """The server, or the prompt, is none that this change can be made for; the message says why."""


class Transform(BaseModel):
    """Changes one prompt. Same prompt, same randomness: same result.

    Its docstring is what `driftscope replay --list-transforms` prints; its fields are what a suite
    may set.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]

    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        """A changed copy; raises NotApplicableError."""
        raise NotImplementedError


def need_messages(prompt: Prompt, name: str) -> None:
    """Raise NotApplicableError for a prompt of plain text."""
    if prompt.is_text:
        raise NotApplicableError(f"{name} changes conversations, and {prompt.key} is plain text")
