"""Two groups of a run's rounds, compared where another circumstance is the same for both."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.statistics.interval import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Acceptance of the second group against the first, over the strata that both have.

    A stratum is one value of the other circumstance: a workload label where ranges of context
    lengths are compared, a range of context lengths where labels are.
    """

    first: str
    """Name of the group that the other one is compared with."""
    second: str
    first_length: float
    """Acceptance length, with the same weight of each stratum for both groups."""
    second_length: float
    kept: float
    """Accepted tokens per round of the second group over those of the first."""
    kept_interval: Interval | None
    p: float | None
    """Two-sided p of `kept` being 1; None where there is nothing to test by."""
    requests: int
    """Requests of the group that has fewer of them, in the shared strata."""
    strata: tuple[str, ...]
    """Names of those that both groups have."""
