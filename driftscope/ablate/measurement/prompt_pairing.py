"""Drafts under each intervention beside those as served, from the counts of all prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from driftscope.ablate.effect import Drafts
from driftscope.ablate.intervention import AS_SERVED, Intervention
from driftscope.ablate.measurement.measured_prompt import MeasuredPrompt
from driftscope.inspect.trial.drafting import FIGURES

ByKey = Mapping[str, MeasuredPrompt]
"""Counts of the prompts that have positions, by key."""


def long_enough(measured: Sequence[MeasuredPrompt], writing: str) -> ByKey:
    """Return the counts of the prompts that were written in one way and have positions."""
    return {each.key: each for each in measured if each.writing == writing and each.positions}


def by_position(served: ByKey, intervention: Intervention) -> Drafts:
    """Return drafts that start at the positions of those as served."""
    prompts = list(served.values())
    return _drafts(intervention, prompts, intervention.id, prompts)


def by_prompt(served: ByKey, rewritten: ByKey, intervention: Intervention) -> Drafts:
    """Return drafts on new answers, beside those as served of the same prompts."""
    both = [key for key in served if key in rewritten]
    prompts = [rewritten[key] for key in both]
    return _drafts(intervention, prompts, AS_SERVED, [served[key] for key in both])


def _drafts(
    intervention: Intervention,
    prompts: Sequence[MeasuredPrompt],
    name: str,
    served: Sequence[MeasuredPrompt],
) -> Drafts:
    return Drafts(
        intervention=intervention,
        matches=[each.matches[name] for each in prompts],
        as_served=[each.matches[AS_SERVED] for each in served],
        figures=_means(prompts, name),
    )


def _means(prompts: Sequence[MeasuredPrompt], name: str) -> dict[str, tuple[float, ...]]:
    positions = max(sum(each.positions for each in prompts), 1)
    means = np.sum([each.sums[name] for each in prompts], axis=0) / positions
    return {figure: tuple(means[:, at].tolist()) for at, figure in enumerate(FIGURES)}
