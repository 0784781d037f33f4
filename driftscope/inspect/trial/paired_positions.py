"""Paired comparison of two drafters that drafted from the same positions of the same answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.compare import Comparison, comparison
from driftscope.analysis.figures.rounds import Counts, Rounds
from driftscope.analysis.figures.side import Pairing, Side
from driftscope.inspect.trial.acceptance import Acceptance

BY_POSITION = "prompt and position"
_LABEL = ""

Positions = Sequence[Sequence[int]]
"""Accepted tokens of a draft from each position of each prompt's answer, by prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTrial:
    """Results of running two drafters beside one target."""

    prompts: int
    k: int
    positions: int
    """Number of positions from which both drafted."""
    as_served: tuple[Acceptance, Acceptance]
    """Acceptance of each in the rounds that a server would make."""
    comparison: Comparison
    """Differences over all positions: the second drafter minus the first."""
    stopped: bool = False
    """Whether Ctrl-C ended the trial; the results are those of the prompts before it."""


def compare_positions(
    first: Positions, second: Positions, k: int, names: tuple[str, str]
) -> Comparison:
    """Compare two drafters by acceptance length and by depth, over the same positions.

    Intervals are over prompts. All figures are tested jointly, as by `driftscope compare`. Raises
    ValueError if the positions are not the same.
    """
    if [len(each) for each in first] != [len(each) for each in second]:
        raise ValueError("the drafters drafted from different positions")
    at = np.arange(len(first))
    pairing = Pairing(how=BY_POSITION, first=at, second=at, alone=0)
    return comparison(_side(first, k), _side(second, k), names, pairing)


def _side(positions: Positions, k: int) -> Side:
    """Return the drafts by prompt; a draft from a position counts as a round."""
    histogram = np.array([np.bincount(each, minlength=k + 1) for each in positions], np.int64)
    drafts: Counts = histogram.sum(axis=1)
    lengths, whole = np.zeros_like(histogram), np.zeros_like(histogram)
    lengths[:, k], whole[:, k] = drafts, histogram[:, k]
    rounds = Rounds(
        request=np.arange(len(positions)),
        rounds=drafts,
        drafted=k * drafts,
        histogram=histogram,
        lengths=lengths,
        exhausted=whole,
        mix=np.zeros(k + 1),
    )
    return Side(rounds=rounds, labels=(_LABEL,) * len(positions))
