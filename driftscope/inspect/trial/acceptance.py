"""Acceptance of a trial with its intervals, and the paired difference of two drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.statistics.intervals import CONFIDENCE, Interval
from driftscope.analysis.statistics.ratio import Ratio, intervals, rate_intervals, ratio_of

Rounds = Sequence[Sequence[int]]
"""Accepted tokens of each round, by prompt."""
Values = Sequence[Sequence[float]]
"""One number for each position of each prompt's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Acceptance of one drafter; intervals are clustered by prompt."""

    length: float
    """Tokens per round, with the target's own."""
    length_interval: Interval | None
    marginal: tuple[float, ...]
    """Share of the rounds that accept depth d, from depth 1 on."""
    marginal_interval: tuple[Interval | None, ...]
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Difference of two acceptance lengths on the same prompts."""

    difference: float
    interval: Interval | None
    """Interval of the difference, at the level that the number of comparisons leaves."""
    p: float
    """Two-sided p-value, multiplied by the number of comparisons (Bonferroni)."""


def acceptance_of(rounds: Rounds, k: int) -> Acceptance:
    """Return the acceptance over all rounds."""
    counts = np.array([len(each) for each in rounds], float)[:, None]
    reached = np.array([[sum(n >= d for n in each) for d in range(1, k + 1)] for each in rounds])
    rates = ratio_of(reached.astype(float), counts)
    spread, length = rate_intervals(rates), _length(rounds)
    length_spread = intervals(length)
    return Acceptance(
        length=float(length.value[0]),
        length_interval=length_spread[0] if length_spread else None,
        marginal=tuple(rates.value.tolist()),
        marginal_interval=tuple(spread) if spread else (None,) * k,
        rounds=int(counts.sum()),
    )


def gain(base: Rounds, other: Rounds, comparisons: int) -> Gain:
    """Return how much longer `other` accepts than `base`, prompt by prompt in the same order."""
    return _gain(_length(base), _length(other), comparisons)


def mean_gain(base: Values, other: Values, comparisons: int = 1) -> Gain:
    """Return how much larger the mean of `other` is than that of `base`, over the same positions of
    the same prompts."""
    return _gain(_mean(base), _mean(other), comparisons)


def _gain(first: Ratio, second: Ratio, comparisons: int) -> Gain:
    from scipy.special import stdtr, stdtrit

    difference = float(second.value[0] - first.value[0])
    influence: NDArray[np.float64] = second.influence[:, 0] - first.influence[:, 0]
    n, df = len(influence), max(1.0, float(min(first.df[0], second.df[0])))
    error = float(np.sqrt((n - 1) / n * np.square(influence).sum()))
    if n < 2 or not np.isfinite(error):
        return Gain(difference=difference, interval=None, p=1.0)
    tail = (1 - CONFIDENCE) / 2 / comparisons
    half = float(stdtrit(df, 1 - tail)) * error
    p = float(2 * stdtr(df, -abs(difference) / error)) if error > 0 else float(difference == 0)
    return Gain(
        difference=difference,
        interval=Interval.of(difference - half, difference + half),
        p=min(1.0, p * comparisons),
    )


def mean_length(rounds: Rounds) -> float:
    """Return the tokens per round over all prompts."""
    return float(_length(rounds).value[0])


def _length(rounds: Rounds) -> Ratio:
    """Return the tokens per round by prompt."""
    tokens = np.array([[sum(each) + len(each)] for each in rounds], float)
    return ratio_of(tokens, np.array([[len(each)] for each in rounds], float))


def _mean(values: Values) -> Ratio:
    """Return the mean over all positions by prompt."""
    sums = np.array([[sum(each)] for each in values], float)
    return ratio_of(sums, np.array([[len(each)] for each in values], float))
