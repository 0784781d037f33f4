"""Plan of an ablation: interventions that apply to a drafter, and the prompts of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.ablate.intervention import AS_SERVED, INTERVENTIONS, Intervention, Size
from driftscope.ablate.measurement.prompt_writing import GivenTemplate, PromptWriting, rewritings
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.trial.trial import Bench

POSITIONS = 20
"""Default number of positions of each answer from which chains start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationOptions:
    """Settings of an ablation."""

    k: int
    wanted: Sequence[str]
    """Identifiers of the interventions, in the order of the catalogue."""
    positions: int = POSITIONS
    template: GivenTemplate | None = None
    """Template of the intervention TEMPLATE in place of the drafter's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationPlan:
    """Interventions that apply, and the reasons why others do not."""

    chains: tuple[Intervention, ...]
    """Interventions on the prompts as served, AS_SERVED first."""
    rewritten: tuple[tuple[Intervention, PromptWriting], ...]
    prompts: Mapping[str, list[int]]
    """Token ids of the prompts as served, by key."""
    not_applicable: Mapping[str, str]

    @property
    def writings(self) -> list[PromptWriting]:
        """All ways of writing the prompts, as served first."""
        served = PromptWriting(id=AS_SERVED, prompts=self.prompts, interventions=self.chains)
        return [served, *(writing for _, writing in self.rewritten)]


def plan_of(
    loaded: Bench,
    drafter: Drafter,
    dtype: torch.dtype | None,
    options: AblationOptions,
    template: str | None,
) -> AblationPlan:
    """Return the plan. `dtype` is the served one if it is narrower than float32, and `template` the
    drafter's own chat template."""
    wanted = [INTERVENTIONS[name] for name in options.wanted]
    rewritten, reasons = rewritings(
        loaded, template, options.template, {each.id for each in wanted if each.rewritten}
    )
    idle = {**_without_effect(drafter, dtype, wanted), **reasons}
    chains = [each for each in wanted if not each.rewritten and each.id not in idle]
    return AblationPlan(
        chains=(INTERVENTIONS[AS_SERVED], *chains),
        rewritten=tuple(rewritten),
        prompts=loaded.prompts,
        not_applicable=idle,
    )


def _without_effect(
    drafter: Drafter, dtype: torch.dtype | None, wanted: Iterable[Intervention]
) -> dict[str, str]:
    found = {}
    for each in wanted:
        if each.size is Size.NORMED and drafter.config.norm_output:
            found[each.id] = "its state is normed before it is fed as it is (norm_output)"
        if each.size is Size.NORMED and drafter.config.eagle1:
            found[each.id] = "an EAGLE-1 drafter has no final norm"
        if each.served_dtype and dtype is None:
            found[each.id] = "no config names a dtype narrower than float32 (torch_dtype)"
    return found
