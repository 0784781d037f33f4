"""Test the decomposition of `driftscope ablate` on drafters that fail for one known reason.

Each drafter is built by hand (`tests/support/constructed_drafter.py`): nothing is wrong, the head
is noisy at every depth alike, a wrong token spoils what follows, states are lost on the way, or
later positions are harder. Wanted: the part that the cause makes is found in nearly all runs and is
the whole loss; each other part is found in at most 5 % of the runs, and is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.ablate.decomposition import Decomposition, Part

SEEDS = 50
"""Largest number of runs for each cause."""
PARTS = ("tokens", "states", "rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablated:
    """One part of the loss in the runs of one cause."""

    world: str
    part: str
    made: bool
    """Whether the cause makes this part."""
    seeds: int
    loss: float
    """Mean loss of agreement, as a share of the positions."""
    found: float
    """Share of the runs in which the part's interval excludes 0."""
    off: float
    """Mean of the part minus what is true: the whole loss if the cause makes it, else 0."""


def ablations(trials: int) -> Iterator[Ablated]:
    """Yield each part of each cause over at most SEEDS runs."""
    from support.constructed_drafter import CAUSES, PART_OF, decomposition_of

    seeds = min(trials, SEEDS)
    for cause in CAUSES:
        found = [decomposition_of(cause, seed) for seed in range(seeds)]
        loss = float(np.mean([each.loss.value for each in found]))
        for part in PARTS:
            made = PART_OF.get(cause) == part
            yield _row(found, cause, part, loss, made=made)


def _row(
    found: Sequence[Decomposition], cause: str, part: str, loss: float, *, made: bool
) -> Ablated:
    parts: list[Part] = [getattr(each, part) for each in found]
    excluding = [each.interval is not None and each.interval.excludes_zero() for each in parts]
    mean = float(np.mean([each.value for each in parts]))
    return Ablated(
        world=cause,
        part=part,
        made=made,
        seeds=len(found),
        loss=loss,
        found=float(np.mean(excluding)),
        off=mean - loss if made else mean,
    )
