"""Ratios between two ways of asking the same prompts, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.interval import Interval

RESAMPLES = 1000
"""Enough for a 95% interval: the percentile's own error is then about 0.7 % of coverage."""
SEED = 20260511
FEWEST_PAIRS = 5
"""With fewer, a bootstrap over prompts says nothing."""

Sums = Mapping[str, tuple[float, float]]
"""Pairing key -> numerator and denominator of a mean, such as tokens and rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Of a mean in one condition, or run, to that in another."""

    value: float
    interval: Interval | None
    """95%; None with fewer than FEWEST_PAIRS pairs."""
    pairs: int

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.interval is not None and (self.interval.low > 1 or self.interval.high < 1)


def paired_ratio(a: Sums, b: Sums) -> Ratio | None:
    """mean(a) / mean(b) over the keys that both have; None where that is no number.

    Resamples keys, so that both sides of a pair are drawn together: what makes a prompt easy drops
    out of the interval.
    """
    keys = sorted(a.keys() & b.keys())
    if not keys:
        return None
    sums = np.array([[*a[key], *b[key]] for key in keys], dtype=np.float64)
    value = _ratio(sums.sum(0, keepdims=True))[0]
    if not np.isfinite(value):
        return None
    return Ratio(value=float(value), interval=_interval(sums), pairs=len(keys))


def _interval(sums: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Interval | None:
    if len(sums) < FEWEST_PAIRS:
        return None
    random = np.random.RandomState(SEED)
    drawn = random.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES)
    low, high = np.nanpercentile(_ratio(drawn @ sums), [2.5, 97.5])
    return Interval(low=float(low), high=float(high))


def _ratio(
    sums: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3])
    return np.asarray(np.where(np.isfinite(found), found, np.nan))
