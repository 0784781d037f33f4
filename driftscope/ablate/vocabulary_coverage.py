"""Share of the target's tokens that a draft vocabulary lacks, by kind of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import rate_intervals, ratio_of
from driftscope.vocabulary import Region

RegionTokens = Mapping[str, tuple[int, int]]
"""Tokens of one answer, and those among them that the draft vocabulary lacks, by region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCoverage:
    """Tokens of one kind of text in the target's answers."""

    region: str
    """One of `Region.ALL`."""
    tokens: int
    lacking: float
    """Share of these tokens that the drafter cannot draft."""
    interval: Interval | None
    """95% interval of `lacking` over prompts; None with too few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyCoverage:
    """Tokens of the target's answers that the draft vocabulary lacks."""

    lacking: float
    """Share of all tokens; 0 if the drafter has the target's whole vocabulary."""
    by_region: tuple[RegionCoverage, ...]
    """Regions that occur, in the order of `Region.ALL`."""


def coverage_of(answers: Sequence[RegionTokens]) -> VocabularyCoverage:
    """Return the shares from the counts of each prompt's answer. Prompts are the clusters of the
    intervals."""
    rows = [[each.get(region, (0, 0)) for region in Region.ALL] for each in answers]
    counts = np.array(rows, np.int64).reshape(len(answers), len(Region.ALL), 2)
    whole = counts.sum(axis=(0, 1))
    found = [_region(at, counts[:, at]) for at in range(len(Region.ALL)) if counts[:, at].any()]
    return VocabularyCoverage(
        lacking=float(whole[1] / whole[0]) if whole[0] else 0.0, by_region=tuple(found)
    )


def _region(at: int, counts: NDArray[np.int64]) -> RegionCoverage:
    """Return the coverage of one region; `counts` are [prompts, 2]."""
    occurring = counts[counts[:, 0] > 0].astype(float)
    ratio = ratio_of(occurring[:, 1:], occurring[:, :1])
    spread = rate_intervals(ratio)
    return RegionCoverage(
        region=Region.ALL[at],
        tokens=int(counts[:, 0].sum()),
        lacking=float(ratio.value[0]),
        interval=spread[0] if spread else None,
    )
