"""Base of all transforms: a named, seeded, documented change of a prompt."""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from driftscope.workloads.suites.prompt import Prompt
from driftscope.workloads.suites.server_facts import Facts

ROOM_TOKENS = 300
"""Tokens left for the prompt itself and its answer in addition to inserted text: the shipped
prompts have up to 150 tokens, and the suites ask for 128."""


class NotApplicableError(Exception):
    """Raised when a transform does not apply to the server or the prompt; the message gives the
    reason."""


class Transform(BaseModel):
    """Changes one prompt. The same prompt and the same random source give the same result.

    Its docstring is what `driftscope replay --list-transforms` prints; its fields are what a suite
    may set.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]

    @abstractmethod
    def apply(self, prompt: Prompt, source: random.Random, facts: Facts) -> Prompt:
        """Return a changed copy; raises NotApplicableError."""


def need_messages(prompt: Prompt, name: str) -> None:
    """Raise NotApplicableError for a prompt of plain text."""
    if prompt.is_text:
        raise NotApplicableError(f"{name} changes conversations, and {prompt.key} is plain text")


def need_room(tokens: int, facts: Facts, what: str) -> None:
    """Raise NotApplicableError if the inserted text leaves no room in the server's context."""
    longest = facts.max_model_len
    if longest is not None and tokens + ROOM_TOKENS > longest:
        raise NotApplicableError(f"{tokens} tokens of {what} do not fit the server's {longest}")
