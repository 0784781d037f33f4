"""Terms of the report, for a reader who meets them for the first time."""

from __future__ import annotations

from driftscope_reports.markup import Markup, el

_TERMS = {
    "Drafter": "A small model that guesses the next few tokens; the large model, the target, "
    "checks all of them at once and keeps those it agrees with. That is speculative decoding.",
    "Depth": "The place of a guess in its chain. Depth 1 is guessed from the target's own state; "
    "every further depth builds on the drafter's guess before it.",
    "Round": "One chain of guesses and its check. Every accepted guess saves a step of the "
    "target; the target always adds one token of its own.",
    "Drift": "What changes with depth and should not: the hidden state grows, or attention leaves "
    "the context for the drafter's own guesses. A high or low level alone is not drift.",
}


def glossary() -> Markup:
    """Return the terms with their meanings, always visible."""
    entries = [el("div", el("dt", term), el("dd", meaning)) for term, meaning in _TERMS.items()]
    return el(
        "section",
        el("h2", "New to this?", id="words-heading"),
        el("dl", entries),
        class_="glossary",
        id="words",
        aria_labelledby="words-heading",
    )
