"""Acceptance of a group of rounds compared with another group of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from driftscope.analysis.circumstances.groups import Group
from driftscope.analysis.statistics.intervals.interval import Interval, difference
from driftscope.analysis.statistics.strata import ENOUGH_REQUESTS


def usable(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with enough requests to be compared."""
    return [group for group in groups if group.requests >= ENOUGH_REQUESTS]


def kept_of(reference: Group, other: Group, *, tests: int) -> tuple[float, Interval] | None:
    """Return the accepted tokens per round of `other` over those of `reference`, with its 95%
    interval; None if the difference is not certain. With several `tests`, each must be more certain
    (Bonferroni)."""
    a, b = reference.mean_length - 1.0, other.mean_length - 1.0
    spans = reference.mean_length_interval, other.mean_length_interval
    if spans[0] is None or spans[1] is None or a <= 0:
        return None
    widen = NormalDist().inv_cdf(1 - 0.025 / tests) / NormalDist().inv_cdf(0.975)
    x, y = _around(a, spans[0], widen), _around(b, spans[1], widen)
    apart = difference(a, x, b, y) if x and y else None
    if apart is None or not apart.low > 0:
        return None
    kept = Interval.of(1 - apart.high / a, 1 - apart.low / a)
    return None if kept is None else (b / a, kept)


def _around(value: float, of_length: Interval, widen: float) -> Interval | None:
    """Return the interval of accepted tokens per round, widened, from the interval of the
    acceptance length."""
    low, high = of_length.low - 1.0, of_length.high - 1.0
    return Interval.of(value - widen * (value - low), value + widen * (high - value))
