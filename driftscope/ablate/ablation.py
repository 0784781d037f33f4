"""Result of an ablation: every effect, and the parts of the loss over depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftscope.ablate.decomposition import Decomposition, decompose
from driftscope.ablate.effect import Drafts, Effect, effect_of
from driftscope.ablate.vocabulary_coverage import VocabularyCoverage


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Results for one drafter beside one target."""

    drafter: str
    target: str
    k: int
    prompts: int
    positions: int
    effects: tuple[Effect, ...]
    """Effect of each intervention, the chain as served first."""
    decomposition: Decomposition | None
    """None if an intervention that it needs was not asked for."""
    vocabulary: VocabularyCoverage
    not_applicable: Mapping[str, str]
    """Interventions that change nothing in this drafter, with the reason."""


def ablation_of(
    drafts: Sequence[Drafts],
    vocabulary: VocabularyCoverage,
    *,
    drafter: str,
    target: str,
    not_applicable: Mapping[str, str],
) -> Ablation:
    """Return the result from the drafts under each intervention, those as served first."""
    served = drafts[0].matches
    return Ablation(
        drafter=drafter,
        target=target,
        k=served[0].shape[1],
        prompts=len(served),
        positions=sum(len(each) for each in served),
        effects=tuple(effect_of(each, len(drafts) - 1) for each in drafts),
        decomposition=decompose({each.intervention.id: each.matches for each in drafts}),
        vocabulary=vocabulary,
        not_applicable=dict(not_applicable),
    )
