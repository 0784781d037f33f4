"""Result of an ablation: every effect, and the parts of the loss over depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftscope.ablate.decomposition import Decomposition, Matches, decompose
from driftscope.ablate.effect import Effect, effect_of
from driftscope.ablate.intervention import AS_SERVED, INTERVENTIONS


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
    lacking: float
    """Share of the target's tokens at these positions that the drafter's vocabulary lacks."""
    not_applicable: Mapping[str, str]
    """Interventions that change nothing in this drafter, with the reason."""


def ablation_of(
    matches: Mapping[str, Sequence[Matches]],
    figures: Mapping[str, dict[str, tuple[float, ...]]],
    *,
    drafter: str,
    target: str,
    lacking: float,
    not_applicable: Mapping[str, str],
) -> Ablation:
    """Return the result from the matches of each intervention by prompt, as served among them."""
    served = matches[AS_SERVED]
    comparisons = len(matches) - 1
    return Ablation(
        drafter=drafter,
        target=target,
        k=served[0].shape[1],
        prompts=len(served),
        positions=sum(len(each) for each in served),
        effects=tuple(
            effect_of(INTERVENTIONS[name], each, served, figures[name], comparisons)
            for name, each in matches.items()
        ),
        decomposition=decompose(matches),
        lacking=lacking,
        not_applicable=dict(not_applicable),
    )
