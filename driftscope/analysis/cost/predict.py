"""Prediction of TPOT for every K and batch size, and of the best K."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.cost.model import DRAWS, SEED, CostModel
from driftscope.analysis.cost.served import Served
from driftscope.analysis.statistics.interval import Interval
from driftscope.metrics.acceptance import mean_length_of
from driftscope.metrics.throughput import tpot_s

_Z95 = 1.959964
"""Half-width of a 95% interval of a normal estimate, in standard errors."""
WIDEST = 3.0
"""Ratio of the upper to the lower end of the 95% interval of a predicted time or speed, above which
the prediction has no support: two K differ in speed by far less, so a figure with a wider interval
does not help to choose. This is driftscope's own bound."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A predicted figure with its 95% interval."""

    value: float
    """Predicted value; NaN if the model gives an impossible figure, such as a time of 0."""
    interval: Interval | None
    """95% interval; None if the prediction has no support, see WIDEST: then the figure is not
    known."""

    def surely_above(self, bound: float) -> bool:
        """Whether the whole interval lies above `bound`."""
        return self.interval is not None and self.interval.low > bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """TPOT at one batch size for K = 0, 1, ..."""

    batch: int
    weight: float
    """Share of the decode steps, counted once per request, at this batch size."""
    tpot_s: tuple[Estimate, ...]
    ran: Estimate
    """TPOT with the K that ran, or with several K as they were served."""
    best_k: int
    gain: Estimate
    """Speed with the best K over that of `ran`, minus 1."""


def tokens_by_k(
    marginal: Sequence[float], intervals: Sequence[Interval | None] | None = None
) -> tuple[Array, ...]:
    """Return tokens per round for K = 0 .. len(marginal), [1 + DRAWS] each.

    The rates of all depths move together in a draw: rounds that are hard at one depth are hard at
    the next, and this gives the widest possible interval of their sum. A rate without an interval,
    or an unknown rate, may have any value.
    """
    z = np.append(0.0, np.random.RandomState(SEED + 3).standard_normal(DRAWS))
    rates = np.nan_to_num(np.array(marginal))[:, None] + np.zeros(1 + DRAWS)
    if intervals is not None:
        anything = Interval(low=0.0, high=1.0)
        known = [each or anything for each in intervals]
        error = np.array([(each.high - each.low) / (2 * _Z95) for each in known])
        rates = np.clip(rates + error[:, None] * z, 0.0, 1.0)
    return tuple(
        np.array([mean_length_of(draw[:k]) for draw in rates.T.tolist()])
        for k in range(len(marginal) + 1)
    )


def predict(model: CostModel, tokens: Sequence[Array], served: Served) -> tuple[Prediction, ...]:
    """Return one prediction per measured batch size; `tokens` comes from `tokens_by_k`."""
    return tuple(
        _predict(model, tokens, served, batch, weight)
        for batch, weight in zip(model.batches, model.weights, strict=True)
    )


def overall(model: CostModel, tokens: Sequence[Array], served: Served) -> Prediction:
    """Return the prediction over the batch sizes as they were served; its `batch` is 0."""
    draws = [
        mean_tpot_s(model, tokens, dict.fromkeys(model.batches, k)) for k in range(len(tokens))
    ]
    return _prediction(0, 1.0, draws, served_tpot_s(model, tokens, served))


def served_tpot_s(model: CostModel, tokens: Sequence[Array], served: Served) -> Array:
    """Return the time per output token with K and batch sizes as served, [1 + DRAWS]."""
    total = np.zeros(1 + DRAWS)
    for batch, weight in zip(model.batches, model.weights, strict=True):
        total += weight * served.tpot_s(model, tokens, batch)
    return total


def mean_tpot_s(model: CostModel, tokens: Sequence[Array], k_of: Mapping[int, int]) -> Array:
    """Return the time per output token over the batch sizes as served, each with its own K of
    `k_of`, [1 + DRAWS]."""
    total = np.zeros(1 + DRAWS)
    for batch, weight in zip(model.batches, model.weights, strict=True):
        k = k_of[batch]
        total += weight * tpot_s(model.step_s(batch, k), tokens[k])
    return total


def gain_of(now: Array, then: Array) -> Estimate:
    """Return the speed with the second TPOT over that with the first, minus 1."""
    speed = _estimate(now / np.where(then > 0, then, np.nan))
    spread = speed.interval and Interval.of(speed.interval.low - 1.0, speed.interval.high - 1.0)
    return Estimate(value=speed.value - 1.0, interval=spread)


def beyond(
    model: CostModel, tokens: Sequence[Array], ahead: int
) -> tuple[tuple[int, Estimate], ...]:
    """Return the gain of each of the `ahead` next larger K, if acceptance keeps falling by the same
    factor as at the last depth."""
    if len(tokens) < 3:
        return ()
    k = len(tokens) - 1
    last, before = tokens[k] - tokens[k - 1], tokens[k - 1] - tokens[k - 2]
    again = np.where(before > 0, last / np.where(before > 0, before, 1.0), 0.0)
    extended = list(tokens)
    for step in range(1, ahead + 1):
        extended.append(extended[-1] + last * again**step)
    now = mean_tpot_s(model, extended, dict.fromkeys(model.batches, k))
    return tuple(
        (n, gain_of(now, mean_tpot_s(model, extended, dict.fromkeys(model.batches, n))))
        for n in range(k + 1, k + ahead + 1)
    )


def _predict(
    model: CostModel, tokens: Sequence[Array], served: Served, batch: int, weight: float
) -> Prediction:
    draws = [tpot_s(model.step_s(batch, k), each) for k, each in enumerate(tokens)]
    return _prediction(batch, weight, draws, served.tpot_s(model, tokens, batch))


def _prediction(batch: int, weight: float, draws: Sequence[Array], ran: Array) -> Prediction:
    possible = [k for k, draw in enumerate(draws) if draw[0] > 0] or [len(draws) - 1]
    best = min(possible, key=lambda k: float(draws[k][0]))
    return Prediction(
        batch=batch,
        weight=weight,
        tpot_s=tuple(_estimate(draw) for draw in draws),
        best_k=best,
        ran=_estimate(ran),
        gain=gain_of(ran, draws[best]),
    )


def _estimate(draws: Array) -> Estimate:
    """Return the estimate of a time or a speed, both of which must be above 0.

    An assumption may lie at the end of the range that it stands for, so the interval is widened to
    contain the value.
    """
    value = float(draws[0])
    if not (np.isfinite(draws).all() and value > 0):
        return Estimate(value=value if value > 0 else math.nan, interval=None)
    low, high = np.percentile(draws[1:], [2.5, 97.5])
    low, high = min(value, float(low)), max(value, float(high))
    return Estimate(value=value, interval=Interval.of(low, high) if high < WIDEST * low else None)
