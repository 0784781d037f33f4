"""Kind of text that each round of a few requests drafts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.vocabulary import Region


def regions_of(
    position: Sequence[int], request: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Return the region of each round at these positions, and whether its text is copied; empty if
    the `request`, a request row, has no regions or is not known."""
    if request is None or request["region_starts"] is None:
        return (), ()
    token = [each + 2 - request["prompt_tokens"] for each in position]
    starts, codes, copies = (
        request[name] or () for name in ("region_starts", "region_codes", "region_copies")
    )
    if not starts:
        return (), ()
    places = [max(bisect_right(starts, each) - 1, 0) for each in token]
    names = tuple(Region.ALL[codes[place]] for place in places)
    return names, tuple(bisect_right(copies, each) % 2 == 1 for each in token)
