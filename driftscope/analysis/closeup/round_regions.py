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
    the `request`, a request row, has no regions, has some of a later version, or is not known."""
    if request is None or not request["region_starts"]:
        return (), ()
    tokens = first_drafted(position, request["prompt_tokens"])
    names = dict(enumerate(Region.ALL))
    known = [names.get(code) for code in request["region_codes"]]
    found = [known[at] for at in regions_at(tokens, request["region_starts"])]
    if None in found:
        return (), ()
    copies = request["region_copies"] or ()
    copied = tuple(bisect_right(copies, each) % 2 == 1 for each in tokens)
    return tuple(name for name in found if name), copied
