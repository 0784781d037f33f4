"""Estimates of one seed and of several, each with its 95% interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.statistics.intervals import Array, student
from driftscope.analysis.statistics.ratio import Ratio, intervals
from driftscope_lab.phenomenon.conditions import AS_TRAINED, FORMS, PERTURBED
from driftscope_lab.phenomenon.figures import Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate and its 95% interval; both ends are NaN where there is none."""

    value: float
    low: float
    high: float

    def words(self, digits: int = 2) -> str:
        """Return the estimate as a table shows it."""
        if math.isnan(self.low):
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def of(ratio: Ratio, at: int = 0) -> Estimate:
    """Return one figure of a ratio over prompts."""
    found = intervals(ratio)
    spread = found[at] if found else None
    value = float(ratio.value[at])
    if spread is None:
        return Estimate(value=value, low=math.nan, high=math.nan)
    return Estimate(value=value, low=spread.low, high=spread.high)


def robustness(first: dict[str, Sums], second: dict[str, Sums]) -> Estimate:
    """Return how much more of its acceptance length the second drafter keeps than the first under
    perturbed templates: a ratio of ratios, above 1 where the second keeps more.

    Per drafter the kept share is the geometric mean, over the perturbed forms, of the acceptance
    length over that in the trained form. The interval is taken over the prompts that have rounds
    in every form with both drafters; an answer of one token has none.
    """
    prompts = _common([drafter[form] for drafter in (first, second) for form in FORMS])
    value, influence = 0.0, np.zeros(len(prompts))
    for sums, sign in ((first, -1.0), (second, 1.0)):
        trained = _log_length(sums[AS_TRAINED].of(prompts))
        for form in PERTURBED:
            perturbed = _log_length(sums[form].of(prompts))
            value = value + sign * (perturbed[0] - trained[0]) / len(PERTURBED)
            influence = influence + sign * (perturbed[1] - trained[1]) / len(PERTURBED)
    return _exponential(value, influence)


def between_seeds(values: Sequence[float]) -> Estimate:
    """Return the mean of one figure over seeds, with Student's interval between seeds."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(value=mean, low=math.nan, high=math.nan)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(student(len(values) - 1.0)) * error
    return Estimate(value=mean, low=mean - half, high=mean + half)


def _common(conditions: Sequence[Sums]) -> list[str]:
    """Return the prompts that all conditions have."""
    sets = [set(one.prompts) for one in conditions]
    return sorted(set.intersection(*sets))


def _log_length(sums: Sums) -> tuple[float, Array]:
    """Return the logarithm of the acceptance length and the influence of each prompt on it."""
    length = sums.length()
    return math.log(length.value[0]), length.influence[:, 0] / length.value[0]


def _exponential(value: float, influence: Array) -> Estimate:
    prompts = len(influence)
    error = math.sqrt((prompts - 1) / prompts * float(np.square(influence).sum()))
    half = float(student(prompts - 1.0)) * error
    return Estimate(value=math.exp(value), low=math.exp(value - half), high=math.exp(value + half))
