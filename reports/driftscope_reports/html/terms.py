"""Terms of the report: explained where they stand, and all together."""

from __future__ import annotations

from markupsafe import Markup

from driftscope_reports.markup import el
from driftscope_reports.page import part

_TERMS = {
    "Drafter": "A small model that drafts the next few tokens. The large model, the target, "
    "verifies all of them in one step and accepts those it agrees with. That is speculative "
    "decoding.",
    "Depth": "The position of a draft token in its chain. Depth 1 is drafted from the target's own "
    "state; every further depth builds on the draft token before it.",
    "Round": "One chain of draft tokens and its verification. Every accepted draft token saves a "
    "step of the target; the target always adds one token of its own.",
    "K": "The number of draft tokens in a chain (num_speculative_tokens).",
    "Drift": "A change with depth that should not happen: the hidden state grows, or attention "
    "moves from the context to the drafter's own draft tokens. A high or low level alone is not "
    "drift.",
}


def term(words: str, meaning: str, *, id: str) -> Markup:  # noqa: A002
    """Return words with an explanation that appears on hover and on focus, without a script."""
    return part("term", words, meaning, id)


def meaning_of(name: str) -> str:
    """Return the meaning of a term of the glossary. Raises KeyError."""
    return _TERMS[name]


def glossary(plainly: str | None) -> Markup:
    """Return all terms with their meanings, below the result in plain words."""
    entries = [el("div", el("dt", name), el("dd", meaning)) for name, meaning in _TERMS.items()]
    return el(
        "div",
        el("p", plainly, class_="lead") if plainly else None,
        el("dl", entries, class_="glossary"),
    )
