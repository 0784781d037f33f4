"""The demonstration: both shipped drafters on held-out prompts in two conditions."""

from __future__ import annotations

from dataclasses import dataclass

K = 8
MAX_TOKENS = 96
BATCH = 8
CONTEXT = 1024
"""Longest context that the engine serves, in tokens."""
LABELS = {"in_distribution": "in distribution", "plain_text_roles": "plain-text roles"}
"""Workload labels of the trio's two prompt conditions."""
DRAFTERS = {"eagle3": "eagle3", "eagle3.1": "eagle31"}
"""Label of a run -> folder of its drafter in the trio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One request of the demonstration."""

    label: str
    token_ids: list[int]


def requests(prompts: int | None = None) -> list[Item]:
    """Return that many prompts, or all, with alternating conditions so that both get the same
    traffic."""
    from driftscope_lab.trio import CONDITIONS, encode, load_prompts

    return [
        Item(label=LABELS[condition], token_ids=encode(prompt.text(condition)))
        for prompt in load_prompts()[:prompts]
        for condition in CONDITIONS
    ]
