"""Ablations of a drafter that is built by hand, without any engine or checkpoint."""

from __future__ import annotations

from typing import Any

from support.constructed_drafter import KNOWN, ConstructedDrafter, K, passages

from driftscope.ablate.intervention import AS_SERVED, FACTORIAL, FIRST_TOKEN, INTERVENTIONS
from driftscope.ablate.result import Ablation, ablation_of, coverage_of
from driftscope.ablate.run import PromptMeter, PromptWriting, by_position, by_prompt, long_enough


def constructed_ablation(cause: str = "states", seed: int = 0, *, lacking: int = 2) -> Ablation:
    """Return the ablation of a drafter with a known cause: the factors, and another way of writing
    the prompts that changes nothing but the seed. `lacking`: tokens of 8 that are lacking."""
    drafter: Any = ConstructedDrafter(KNOWN[cause], seed)
    meter = PromptMeter(drafter, drafter, k=K, positions=20)
    chains = tuple(INTERVENTIONS[name] for name in FACTORIAL)
    served = PromptWriting(id=AS_SERVED, prompts={}, interventions=chains)
    other = PromptWriting(id=FIRST_TOKEN, prompts={}, interventions=chains[:1])
    measured = [meter.measured(each, served) for each in passages(seed)]
    again = [meter.measured(each, other) for each in passages(seed + 1)]
    mine = long_enough(measured, AS_SERVED)
    rewritten = by_prompt(mine, long_enough(again, FIRST_TOKEN), INTERVENTIONS[FIRST_TOKEN])
    return ablation_of(
        [*(by_position(mine, each) for each in chains), rewritten],
        coverage_of([{"prose": (8, lacking), "code": (8, 0)}] * len(mine)),
        drafter="models/constructed",
        target="models/target",
        not_applicable={"template": "the drafter was saved without a chat template"},
    )
