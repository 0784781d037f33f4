"""Other ways of writing the prompts: with or without a first token, and in the drafter's template.

Only the tokenizer is needed. A drafter knows the prompts as they were written when it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.inspect.trial.trial_result import Change, NotApplicable

Ids = Mapping[str, Sequence[int]]
"""Token ids of each prompt, by its key."""
Conversations = Mapping[str, Sequence[Mapping[str, Any]]]
"""Messages of those prompts that are conversations, by key."""
FIRST_TOKEN, TEMPLATE = "first_token", "drafters_template"
_SEVERAL = "[{"
"""Beginning of a list of named templates, which `chat_template` returns as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A change in how prompts are written, and the prompts after it."""

    change: Change
    prompts: Mapping[str, list[int]]


def renderings(
    tokenizer: Any,
    prompts: Ids,
    conversations: Conversations,
    templates: tuple[str | None, ...],
    *,
    whose: str = "drafter's",
) -> tuple[list[Rendering], list[NotApplicable]]:
    """Return the renderings that can be tried, and those that cannot, with the reason. `templates`
    are the target's and the drafter's own, or another one; reasons call it `whose` template."""
    tried = (
        _first_token(tokenizer.bos_token_id, prompts),
        _template(tokenizer, prompts, conversations, templates, whose),
    )
    made = [each for each in tried if isinstance(each, Rendering)]
    return made, [each for each in tried if isinstance(each, NotApplicable)]


def _first_token(bos: int | None, prompts: Ids) -> Rendering | NotApplicable:
    if bos is None:
        return NotApplicable(id=FIRST_TOKEN, reason="the target's tokenizer has no first token")
    begin = {len(ids) > 0 and ids[0] == bos for ids in prompts.values()}
    if len(begin) != 1:
        return NotApplicable(id=FIRST_TOKEN, reason="only some prompts begin with the first token")
    if begin == {True} and any(len(ids) < 2 for ids in prompts.values()):
        return NotApplicable(id=FIRST_TOKEN, reason="a prompt is nothing but the first token")
    return _without(prompts) if begin == {True} else _with(bos, prompts)


def _without(prompts: Ids) -> Rendering:
    change = Change(
        id="first_token_off",
        change="prompts without the first token (add_special_tokens: false, or another template)",
        mistake="the drafter was trained without the first token",
    )
    return Rendering(change=change, prompts={key: list(ids[1:]) for key, ids in prompts.items()})


def _with(bos: int, prompts: Ids) -> Rendering:
    change = Change(
        id="first_token_on",
        change="prompts with the first token (add_special_tokens: true, or another template)",
        mistake="the drafter was trained with the first token",
    )
    return Rendering(change=change, prompts={key: [bos, *ids] for key, ids in prompts.items()})


def _template(
    tokenizer: Any,
    prompts: Ids,
    conversations: Conversations,
    templates: tuple[str | None, ...],
    whose: str,
) -> Rendering | NotApplicable:
    targets, own = templates
    reason = _no_template(targets, own, set(conversations) >= set(prompts), whose)
    if reason is not None:
        return NotApplicable(id=TEMPLATE, reason=reason)
    try:
        made = {key: _rendered(tokenizer, conversations[key], own) for key in prompts}
    except Exception as error:  # a template is a program, which can fail in any way
        first = (str(error) or type(error).__name__).splitlines()[0]
        return NotApplicable(id=TEMPLATE, reason=f"the {whose} template fails ({first})")
    change = Change(
        id=TEMPLATE,
        change="the drafter's own chat template (--chat-template)",
        mistake="the drafter was trained with its own template, not the target's",
    )
    return Rendering(change=change, prompts=made)


def _no_template(
    targets: str | None, own: str | None, conversations: bool, whose: str
) -> str | None:
    """Return the reason why no other template can be tried; None if one can."""
    if not own:
        return "the drafter was saved without a chat template"
    if own.startswith(_SEVERAL):
        return "the drafter was saved with several chat templates"
    if targets and own.strip() == targets.strip():
        return f"the {whose} chat template is the target's"
    return None if conversations else "the prompts are texts, not conversations"


def _rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], template: str | None
) -> list[int]:
    text = tokenizer.apply_chat_template(
        list(messages), chat_template=template, tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError("it renders nothing")
    return ids
