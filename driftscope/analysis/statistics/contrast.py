"""Contrast of two groups of a run's rounds within strata of another circumstance."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.statistics.interval import Interval


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
