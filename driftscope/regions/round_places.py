"""Places of rounds among the regions of an answer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence


def first_drafted(positions: Iterable[int], prompt_tokens: int) -> list[int]:
    """Return the token that each round drafts first, by its place in the answer, from 0.

    `positions` are those of VerifyRow: the round's last verified slot is one before the token that
    the target added, and the drafter's first token comes after that one.
    """
    return [position + 2 - prompt_tokens for position in positions]


def regions_at(tokens: Iterable[int], starts: Sequence[int]) -> list[int]:
    """Return the index in `starts`, ascending and not empty, of the region of each token."""
    return [max(bisect_right(starts, token) - 1, 0) for token in tokens]
