"""Interventions on a chain, each of which changes one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class AttentionChange(StrEnum):
    """Change of the drafter's attention."""

    HIDE_CHAIN = "hide_chain"
    """The chain's own slots are not seen."""
    HIDE_SINK = "hide_sink"
    """The sink set is not seen."""
    RESTORE_SINK = "restore_sink"
    """Each head gives the sink set the share that it gave it at depth 1."""
    LAST_SLOTS = "last_slots"
    """Only the nearest slots are seen."""


class Size(StrEnum):
    """Change of the state that the next depth gets."""

    PINNED = "pinned"
    """Its size is that of the state after depth 1."""
    NORMED = "normed"
    """It passes the final norm, as with EAGLE 3.1's `norm_output`."""


class PromptLookup(StrEnum):
    """Drafts by lookup of the last tokens in prompt and answer, as vLLM's method `ngram`."""

    ALONE = "alone"
    """Such drafts in place of the drafter's."""
    BETTER_OF_BOTH = "better_of_both"
    """At each position whichever is accepted further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """One change of a chain; everything else is as served."""

    id: str
    changes: str
    """The change in words that follow "with"."""
    shows: str = ""
    """Conclusion that a difference permits; "" for the chain as served."""
    right_tokens: bool = False
    """Whether each depth reads the target's token in place of the drafter's guess."""
    right_states: bool = False
    """Whether each depth reads the target's captured states in place of the drafter's own."""
    size: Size | None = None
    attention: AttentionChange | None = None
    lookup: PromptLookup | None = None
    served_dtype: bool = False
    """Whether drafter and captured states are in the dtype in which they are served."""


AS_SERVED = "as-served"
RIGHT_TOKENS, RIGHT_STATES, RIGHT_BOTH = "right-tokens", "right-states", "right-both"
SERVED_DTYPE = "served-dtype"
FACTORIAL = (AS_SERVED, RIGHT_TOKENS, RIGHT_STATES, RIGHT_BOTH)
"""Interventions that the decomposition needs: neither, either and both factors."""
INTERVENTIONS: Mapping[str, Intervention] = {
    intervention.id: intervention
    for intervention in (
        Intervention(id=AS_SERVED, changes="nothing changed"),
        Intervention(
            id=RIGHT_TOKENS,
            changes="the target's tokens fed",
            shows="what wrong tokens do to later depths; it cannot change acceptance length",
            right_tokens=True,
        ),
        Intervention(
            id=RIGHT_STATES,
            changes="the target's states fed",
            shows="what the recurrent state costs: its growth, its drift, and what it never knew",
            right_states=True,
        ),
        Intervention(
            id=RIGHT_BOTH,
            changes="the target's tokens and states fed",
            shows="how hard later positions are, with the drafter as good as at depth 1",
            right_tokens=True,
            right_states=True,
        ),
        Intervention(
            id="pin-size",
            changes="the state's size kept",
            shows="whether the size alone costs acceptance",
            size=Size.PINNED,
        ),
        Intervention(
            id="normalise",
            changes="the state normed",
            shows="whether a switch of the flag would help without training",
            size=Size.NORMED,
        ),
        Intervention(
            id="hide-chain",
            changes="the chain's own slots hidden",
            shows="whether the drafter needs its own tokens",
            attention=AttentionChange.HIDE_CHAIN,
        ),
        Intervention(
            id="hide-sink",
            changes="the sink hidden",
            shows="whether it needs the sink",
            attention=AttentionChange.HIDE_SINK,
        ),
        Intervention(
            id="restore-sink",
            changes="the sink's share kept",
            shows="whether the sink's loss over depth costs acceptance",
            attention=AttentionChange.RESTORE_SINK,
        ),
        Intervention(
            id="last-slots",
            changes="only the nearest slots seen",
            shows="whether it needs the far context",
            attention=AttentionChange.LAST_SLOTS,
        ),
        Intervention(
            id=SERVED_DTYPE,
            changes="the served dtype",
            shows="whether rounding costs acceptance",
            served_dtype=True,
        ),
        Intervention(
            id="ngram-lookup",
            changes="n-gram lookup in the drafter's place",
            shows="what speculation without a drafter would accept",
            lookup=PromptLookup.ALONE,
        ),
        Intervention(
            id="better-of-both",
            changes="the better of drafter and lookup at each position",
            shows="what lookup could add to the drafter, at most",
            lookup=PromptLookup.BETTER_OF_BOTH,
        ),
    )
}
"""Interventions by id, in the order in which they are reported."""
