"""TPOT for every K and batch size, and the best K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.cost.model import DRAWS, SEED, CostModel
from driftscope.analysis.interval import Interval
from driftscope.metrics.acceptance import mean_length_of
from driftscope.metrics.throughput import tpot_s

_Z95 = 1.959964
"""Standard errors in half of a 95% interval of a normal estimate."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A predicted figure with its 95% interval."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """TPOT of one batch size for K = 0, 1, ..."""

    batch: int
    weight: float
    """Share of the decode steps of single requests at this batch size."""
    tpot_s: tuple[Estimate, ...]
    best_k: int
    gain: Estimate
    """Speed with the best K over that with the K that ran, less 1."""


def tokens_by_k(
    marginal: Sequence[float], intervals: Sequence[Interval] | None = None
) -> tuple[Array, ...]:
    """[1 + DRAWS] tokens per round for K = 0 .. len(marginal).

    The rates of all depths move together in a draw: rounds that are hard at one are at the next,
    and it is the widest that their sum can be.
    """
    z = np.append(0.0, np.random.RandomState(SEED + 3).standard_normal(DRAWS))
    rates = np.array(marginal)[:, None] + np.zeros(1 + DRAWS)
    if intervals is not None:
        error = np.array([(each.high - each.low) / (2 * _Z95) for each in intervals])
        rates = np.clip(rates + error[:, None] * z, 0.0, 1.0)
    return tuple(
        np.array([mean_length_of(draw[:k]) for draw in rates.T.tolist()])
        for k in range(len(marginal) + 1)
    )


def predict(model: CostModel, tokens: Sequence[Array], ran_k: int) -> tuple[Prediction, ...]:
    """One prediction per measured batch size; `tokens` as of `tokens_by_k`."""
    return tuple(
        _predict(model, tokens, ran_k, batch, weight)
        for batch, weight in zip(model.batches, model.weights, strict=True)
    )


def overall(model: CostModel, tokens: Sequence[Array], ran_k: int) -> Prediction:
    """The same over the batch sizes as they were served; `batch` is 0."""
    draws = [
        sum(w * tpot_s(model.step_s(b, k), each)
            for b, w in zip(model.batches, model.weights, strict=True))
        for k, each in enumerate(tokens)
    ]  # fmt: skip
    return _prediction(0, 1.0, [np.asarray(draw) for draw in draws], ran_k)


def _predict(
    model: CostModel, tokens: Sequence[Array], ran_k: int, batch: int, weight: float
) -> Prediction:
    draws = [tpot_s(model.step_s(batch, k), each) for k, each in enumerate(tokens)]
    return _prediction(batch, weight, draws, ran_k)


def _prediction(batch: int, weight: float, draws: Sequence[Array], ran_k: int) -> Prediction:
    best = min(range(len(draws)), key=lambda k: float(draws[k][0]))
    return Prediction(
        batch=batch,
        weight=weight,
        tpot_s=tuple(_estimate(draw) for draw in draws),
        best_k=best,
        gain=_estimate(draws[ran_k] / draws[best] - 1.0),
    )


def _estimate(draws: Array) -> Estimate:
    low, high = np.percentile(draws[1:], [2.5, 97.5])
    return Estimate(value=float(draws[0]), interval=Interval(low=float(low), high=float(high)))
