"""The conditions under which the drafters are measured: forms of the template, and contexts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from driftscope_lab.trio.prompts import (
    Conversation,
    Length,
    Prompt,
    fitting,
    in_plain_text,
    templated,
    with_other_roles,
)

AS_TRAINED = "as trained"
CONTEXTS = (128, 512, 1024, 1936)
"""Further contexts in the trained form; the prompts are at most so long, in tokens."""
OTHER_SYSTEM = "Reply to every message in the style of a polite librarian from the north."
"""System prompt that no model was trained on."""

FORMS: dict[str, Callable[[Conversation], str]] = {
    AS_TRAINED: templated,
    "other system prompt": lambda one: templated(dataclasses.replace(one, system=OTHER_SYSTEM)),
    "no system prompt": lambda one: templated(dataclasses.replace(one, system=None)),
    "no first token": lambda one: templated(one, first=""),
    "other roles": with_other_roles,
    "plain text": in_plain_text,
    "plain text, no first token": lambda one: in_plain_text(one, first=""),
}
"""Name of each form of the template -> rendering."""
PERTURBED = tuple(form for form in FORMS if form != AS_TRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One request: a prompt in a condition."""

    condition: str
    prompt: str
    text: str


def context_name(tokens: int) -> str:
    """Return the name of a context's condition."""
    return f"context {tokens}"


def conditions() -> tuple[str, ...]:
    """Return the names of all conditions."""
    return (*FORMS, *map(context_name, CONTEXTS))


def items(prompts: Sequence[Prompt], length: Length) -> Iterator[Item]:
    """Yield every prompt in every condition, prompt by prompt, so that a run that is cut short has
    all conditions of its prompts."""
    for prompt in prompts:
        short = prompt.conversation(prompt.short)
        for form, render in FORMS.items():
            yield Item(condition=form, prompt=prompt.id, text=render(short))
        for tokens in CONTEXTS:
            text = templated(prompt.conversation(fitting(prompt, tokens, length)))
            yield Item(condition=context_name(tokens), prompt=prompt.id, text=text)
