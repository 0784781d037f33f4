"""Regions of the tokens of one request's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from driftscope.regions.copied_tokens import copied_tokens
from driftscope.regions.markers import Enclosure
from driftscope.regions.text_regions import Span, enclosure_left_open, text_regions
from driftscope.regions.token_texts import TokenTexts
from driftscope.vocabulary import Language, Region

PROMPT_TAIL = 64
"""Number of a prompt's last tokens in which an opened enclosure is looked for: templates open
thinking and forced tool calls right before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRegions:
    """Regions of an answer, as columns of `RequestRow` hold them; token 0 is the answer's first."""

    starts: list[int]
    codes: list[int]
    languages: list[int]
    boundaries: list[int]
    copies: list[int]


CONSTRAINTS = {
    **dict.fromkeys(("json", "json_object"), Region.JSON),
    **dict.fromkeys(("regex", "choice", "grammar"), Region.GUIDED),
}
"""Region of an answer by its kind of constraint in `RequestRow.structured`. A structural tag
constrains parts of an answer only, which are found like those of any other."""


def answer_regions(
    texts: TokenTexts,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    constraint: str | None = None,
    from_start: bool = False,
) -> AnswerRegions:
    """Return the regions of an answer. `constraint`: as of `text_regions`; `from_start`: it held
    from the first token on, whatever the prompt opened."""
    pieces = texts.of(answer)
    ends = list(accumulate(map(len, pieces)))
    regions = text_regions(
        "".join(pieces),
        _special(texts, answer, ends),
        inside=None if constraint and from_start else _left_open(texts, prompt),
        constraint=constraint,
    )
    places = np.searchsorted(ends, [each.start for each in regions], side="right").tolist()
    # Of several regions that begin in one token, the last is that of most of what follows.
    last = dict(zip(places, regions, strict=True))
    boundaries = {place for place, each in zip(places, regions, strict=True) if each.boundary}
    return AnswerRegions(
        starts=list(last),
        codes=[Region.ALL.index(each.region) for each in last.values()],
        languages=[Language.ALL.index(each.language) for each in last.values()],
        boundaries=sorted(boundaries),
        copies=_runs(copied_tokens(prompt, answer)),
    )


def _left_open(texts: TokenTexts, prompt: Sequence[int]) -> Enclosure | None:
    return enclosure_left_open("".join(texts.of(prompt[-PROMPT_TAIL:])))


def _special(texts: TokenTexts, answer: Sequence[int], ends: Sequence[int]) -> list[Span]:
    return [
        (ends[at - 1] if at else 0, ends[at])
        for at, token in enumerate(answer)
        if texts.is_special(token)
    ]


def _runs(flags: NDArray[np.bool_]) -> list[int]:
    """Return begin and end of each run of true flags, alternating."""
    padded = np.concatenate([[False], flags, [False]])
    return [int(each) for each in np.flatnonzero(padded[1:] != padded[:-1])]
