"""A conversation, and its renderings as text: in the chat template and in forms that differ.

The models are trained on `templated`. The other renderings are perturbations of the template, under
which drafters have been observed to lose acceptance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftscope_lab.trio.template import ASSISTANT, BOS, END

OTHER_ROLES = {"system": "rules", "user": "human", "assistant": "reply"}
"""Names of roles that a model never saw, for the same turns."""
PLAIN_ROLES = {"system": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A user's request and the assistant's answer."""

    request: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A system prompt, or none, and exchanges; where `open` is set the last answer is not told."""

    system: str | None
    exchanges: tuple[Exchange, ...]
    open: bool = False

    def turns(self) -> Iterator[tuple[str, str | None]]:
        """Yield (role, text) of each turn; the text of an open last answer is None."""
        if self.system is not None:
            yield "system", self.system
        last = len(self.exchanges) - 1
        for index, one in enumerate(self.exchanges):
            yield "user", one.request
            yield "assistant", None if self.open and index == last else one.answer


def templated(conversation: Conversation, *, first: str = BOS) -> str:
    """Return the conversation in the chat template, after the text `first`."""
    return first + "".join(_turn(role, text) for role, text in conversation.turns())


def with_other_roles(conversation: Conversation) -> str:
    """Return the conversation in a template of the same shape whose role names are unknown."""
    parts = [BOS]
    for role, text in conversation.turns():
        parts.append(f"<|{OTHER_ROLES[role]}|>\n" + ("" if text is None else f"{text}{END}"))
    return "".join(parts)


def in_plain_text(conversation: Conversation, *, first: str = BOS) -> str:
    """Return the conversation with its roles written out, without special tokens but the first."""
    parts = [first]
    for role, text in conversation.turns():
        parts.append(f"{PLAIN_ROLES[role]}:" + ("" if text is None else f" {text}\n\n"))
    return "".join(parts)


def _turn(role: str, text: str | None) -> str:
    if role == "assistant":
        return ASSISTANT if text is None else f"{ASSISTANT}{text}{END}"
    return f"<|{role}|>\n{text}{END}"
