"""Effect of one intervention: acceptance with it, and its difference to the chain as served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.ablate.decomposition import Matches
from driftscope.ablate.intervention import Intervention
from driftscope.analysis.statistics.interval import Interval
from driftscope.inspect.trial.acceptance import Acceptance, acceptance_of, gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Results of one intervention, over the same positions as served."""

    intervention: Intervention
    acceptance: Acceptance
    """Acceptance over all positions; each counts as a round."""
    agreement: tuple[float, ...]
    """Share of the positions whose token at depth d is the target's, whatever came before."""
    conditional: tuple[float | None, ...]
    """Share of the chains accepted up to depth d - 1 that are accepted at d; None if there is
    none."""
    figures: dict[str, tuple[float, ...]]
    """Means by depth of RMS, top-1 probability and attention masses."""
    difference: float
    """Acceptance length minus that as served."""
    interval: Interval | None
    """Interval of the difference, paired by prompt, at a level that holds for all interventions
    together; None with too few prompts."""

    @property
    def words(self) -> str:
        """Effect on acceptance, in words."""
        with_it = f"with {self.intervention.changes}"
        if self.interval is None:
            change = f"{self.difference:+.2f} tokens per round"
            return f"{with_it}: {change}; cannot tell: give more prompts"
        low, high = self.interval.low, self.interval.high
        span = f"{self.difference:+.2f} [{low:+.2f}, {high:+.2f}] tokens per round"
        if not self.interval.excludes_zero():
            return f"{with_it}: no change beyond chance, {span}"
        return f"{with_it}: changes acceptance length by {span}"


def effect_of(
    intervention: Intervention,
    matches: Sequence[Matches],
    as_served: Sequence[Matches],
    figures: dict[str, tuple[float, ...]],
    comparisons: int,
) -> Effect:
    """Return the effect from the matches by prompt, with and without the intervention."""
    k = matches[0].shape[1]
    accepted = [_accepted(each) for each in matches]
    acceptance = acceptance_of(accepted, k)
    paired = gain([_accepted(each) for each in as_served], accepted, max(comparisons, 1))
    return Effect(
        intervention=intervention,
        acceptance=acceptance,
        agreement=tuple(np.concatenate(list(matches)).mean(axis=0).tolist()),
        conditional=_conditional(acceptance.marginal),
        figures=figures,
        difference=paired.difference,
        interval=paired.interval,
    )


def _accepted(matches: Matches) -> list[int]:
    """Return the leading matches of each position."""
    leading: NDArray[np.int64] = np.cumprod(matches.astype(np.int64), axis=1).sum(axis=1)
    return [int(n) for n in leading]


def _conditional(marginal: Sequence[float]) -> tuple[float | None, ...]:
    before = (1.0, *marginal[:-1])
    return tuple(b / a if a > 0 else None for a, b in zip(before, marginal, strict=True))
