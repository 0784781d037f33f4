"""Contrast of two groups of a run's rounds within strata of another circumstance."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.statistics.intervals.independent_cases import exact_interval
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.statistics.multiple_comparisons import ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Acceptance of the second group compared with the first, over the strata that both have.

    A stratum is one value of the other circumstance: a workload label if ranges of context lengths
    are compared, a range of context lengths if labels are.
    """

    first: str
    """Name of the group with which the other one is compared."""
    second: str
    first_length: float
    """Acceptance length of the first group; each stratum has the same weight in both groups."""
    second_length: float
    kept: float
    """Accepted tokens per round of the second group over those of the first."""
    kept_interval: Interval | None
    p: float | None
    """Two-sided p-value for `kept` being 1; None if it cannot be tested."""
    requests: int
    """Number of requests in the shared strata, of the group that has fewer."""
    strata: tuple[str, ...]
    """Names of the strata that both groups have."""

    def loses(self, bound: float, *, tests: int = 1) -> bool:
        """Whether less than `bound` of the accepted tokens is kept, and surely less than all of
        them, as one of several `tests` (Bonferroni)."""
        return self.kept < bound and self.p is not None and self.p < ALPHA / tests


def nothing_kept(
    rounds: int, first: float, *, supported: bool
) -> tuple[Interval | None, float | None]:
    """Return interval and p-value of `kept` if the second group accepts nothing in `rounds` rounds,
    and the first one `first` tokens per round. No request differs from another then, and the share
    of rounds that accept anything has an exact interval."""
    high = exact_interval(0, rounds).high / first
    return (Interval.of(0.0, high), 0.0) if supported and high < 1 else (None, None)
