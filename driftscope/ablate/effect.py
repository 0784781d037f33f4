"""Effect of one intervention: acceptance with it, and its difference to the chain as served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from driftscope.ablate.decomposition import Matches
from driftscope.ablate.intervention import Intervention
from driftscope.analysis.statistics.intervals import Interval
from driftscope.inspect.trial.acceptance import Acceptance, acceptance_of, gain


class PairedBy(StrEnum):
    """Unit in which an intervention and the chain as served are paired."""

    POSITION = "position"
    """Chains start at the same positions of the same answers."""
    PROMPT = "prompt"
    """The target answers the same prompts anew, so that positions differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Chains under one intervention, and those as served that they are compared with."""

    intervention: Intervention
    matches: Sequence[Matches]
    """Matches by prompt."""
    as_served: Sequence[Matches]
    """Matches of the same prompts, in the same order."""
    figures: Mapping[str, tuple[float, ...]]
    """Means by depth of RMS, top-1 probability and attention masses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Results of one intervention, compared with the chain as served."""

    intervention: Intervention
    prompts: int
    """Number of prompts that are compared."""
    acceptance: Acceptance
    """Acceptance over all positions; each counts as a round."""
    agreement: tuple[float, ...]
    """Share of the positions whose token at depth d is the target's, whatever came before."""
    conditional: tuple[float | None, ...]
    """Share of the chains accepted up to depth d - 1 that are accepted at d; None if there is
    none."""
    figures: Mapping[str, tuple[float, ...]]
    """Means by depth of RMS, top-1 probability and attention masses."""
    difference: float
    """Acceptance length minus that as served, over the same prompts."""
    interval: Interval | None
    """Interval of the difference, clustered by prompt, at a level that holds for all interventions
    together; None with too few prompts."""

    @property
    def paired_by(self) -> PairedBy:
        """Unit in which both sides are paired."""
        return PairedBy.PROMPT if self.intervention.rewritten else PairedBy.POSITION

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


def effect_of(drafts: Drafts, comparisons: int) -> Effect:
    """Return the effect; `comparisons` is the number of effects whose intervals hold together."""
    accepted = [_accepted(each) for each in drafts.matches]
    acceptance = acceptance_of(accepted, drafts.matches[0].shape[1])
    served = [_accepted(each) for each in drafts.as_served]
    paired = gain(served, accepted, max(comparisons, 1))
    return Effect(
        intervention=drafts.intervention,
        prompts=len(drafts.matches),
        acceptance=acceptance,
        agreement=tuple(np.concatenate(list(drafts.matches)).mean(axis=0).tolist()),
        conditional=_conditional(acceptance.marginal),
        figures=drafts.figures,
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
