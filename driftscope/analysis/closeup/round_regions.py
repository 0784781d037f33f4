"""Kind of text that each round of a few requests drafts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.regions.round_places import first_drafted, regions_at
from driftscope.vocabulary import Region


def regions_of(
    position: Sequence[int], request: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Return the region of each round at these positions, and whether its text is copied; empty if
    the `request`, a request row, has no regions or is not known."""
    if request is None or not request["region_starts"]:
        return (), ()
    tokens = first_drafted(position, request["prompt_tokens"])
    codes, copies = request["region_codes"], request["region_copies"] or ()
    names = tuple(Region.ALL[codes[at]] for at in regions_at(tokens, request["region_starts"]))
    return names, tuple(bisect_right(copies, each) % 2 == 1 for each in tokens)
