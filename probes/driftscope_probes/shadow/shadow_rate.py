"""Decides in which draft steps chains are drafted under interventions."""

from __future__ import annotations

import random

from driftscope_probes.steps.sampler import AIM, Sampler

BUDGET_SHARE = 0.25
"""Part of the budget that shadow rounds may take; recorded chains keep the rest."""
RECORDED_PER_SHADOW = 8
"""Recorded steps per shadow round, if the recorded ones have a fixed rate."""
LEAST_GAP = 64
"""Smallest number of draft steps from one shadow round to the next under a budget, and to the first
one, so that steps have a known cost by then."""


class ShadowRate:
    """A fixed rate, or one that follows the budget: the next shadow round waits until the steps
    after the last one have earned its cost."""

    def __init__(self, sampler: Sampler, every: int | None, seed: int = 0) -> None:
        """`sampler` governs the recorded steps; `every` fixes the rate at 1 / every."""
        self._sampler, self._every = sampler, every
        self._random = random.Random(seed)
        self._count, self._next = 0, every or self._fixed or LEAST_GAP

    def take(self) -> bool:
        """Return whether the draft step that is about to run is a shadow round; call once for
        each, and `spent` after a shadow round."""
        self._count += 1
        return self._count >= self._next and self._sampler.recording

    def spent(self, seconds: float) -> None:
        """Report what a shadow round cost on the serving thread."""
        gap = self._every or self._fixed or self._earned(seconds)
        step_s = self._sampler.known_step_s
        self._sampler.beside = seconds / (gap * step_s) if step_s else 0.0
        self._next = self._count + gap

    @property
    def _fixed(self) -> int:
        """Number of draft steps per shadow round if recorded steps have a fixed rate, else 0."""
        return RECORDED_PER_SHADOW * (self._sampler.every or 0)

    def _earned(self, seconds: float) -> int:
        """Return a gap, drawn so that shadow rounds keep no rhythm with the served requests."""
        sampler = self._sampler
        per_step_s = BUDGET_SHARE * AIM * sampler.budget * sampler.known_step_s
        mean = seconds / per_step_s if per_step_s else float(LEAST_GAP)
        return max(LEAST_GAP, round(mean * self._random.uniform(0.5, 1.5)))
