"""Counts of one prompt under each intervention: all that an ablation keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.ablate.decomposition import Matches
from driftscope.ablate.vocabulary_coverage import RegionTokens

FigureSums = NDArray[np.float64]
"""Sums over the positions of `trial.drafting.FIGURES`, [K, figures]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """Counts of one prompt, written in one way."""

    writing: str
    """Identifier of the `PromptWriting`."""
    key: str
    matches: Mapping[str, Matches]
    """Matches by intervention, from the same positions; of none if the answer is too short."""
    sums: Mapping[str, FigureSums]
    vocabulary: RegionTokens

    @property
    def positions(self) -> int:
        """Number of positions from which chains start."""
        return len(next(iter(self.matches.values())))
