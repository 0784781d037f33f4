"""Estimates of tokens per second for every K up to the one that ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.metrics.acceptance import mean_length_of
from driftscope.metrics.definition import Definition

Array = NDArray[np.float64]

RELATIVE_SPEED = Definition(
    name="throughput.relative",
    title="Estimated speed by K",
    meaning="Tokens per second with this K, relative to the K that ran. An estimate: it assumes "
    "that drafting time is proportional to K and that verification does not depend on K.",
    unit="1",
    range="more than 0",
    source="driftscope, from measured acceptance and step times",
)
PREDICTED_TPOT = Definition(
    name="throughput.predicted_tpot_s",
    title="Predicted time per output token",
    meaning="Time of a step at this K and batch size, by a model fitted on measured steps, divided "
    "by the tokens that a round with K draft tokens yields.",
    unit="s",
    range="more than 0",
    source="driftscope, from measured acceptance and step times",
)

SPEEDUP = Definition(
    name="throughput.speedup",
    title="Estimated speed against no speculation",
    meaning="Tokens per second with the drafter, relative to the target alone; below 1 speculation "
    "costs more time than it saves. An estimate: it assumes that verifying takes as long as a step "
    "of the target alone, which holds best for small batches.",
    unit="1",
    range="more than 0",
    source="driftscope, from measured acceptance and step times",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Typical time of one step that drafts K tokens."""

    step_s: float
    """Time in seconds of the whole model step: target, sampling and drafter."""
    draft_s: float
    """Time in seconds of the drafter within the step."""
    recorded: bool = False
    """Whether the times come from recorded steps, which the probe slows by more than its own
    time."""


def tpot_s(step_s: Array, tokens_per_round: Array) -> Array:
    """Return the seconds per output token of a request that takes part in every step."""
    return step_s / tokens_per_round


def relative_speed(marginal: Sequence[float], cost: StepCost) -> tuple[float, ...]:
    """Return the speed with K = 1 .. len(marginal), relative to the last; needs positive times."""
    k_ran = len(marginal)
    rest_s = cost.step_s - cost.draft_s
    rates = [
        mean_length_of(marginal[:k]) / (rest_s + cost.draft_s * k / k_ran)
        for k in range(1, k_ran + 1)
    ]
    return tuple(rate / rates[-1] for rate in rates)


def speedup(mean_length: float, cost: StepCost) -> float:
    """Return the speed with the drafter over the target's alone; needs a positive step time."""
    return mean_length * (cost.step_s - cost.draft_s) / cost.step_s
