"""How many independent units a run's requests come from, and what they are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.figures.requests import Units
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.ratio import design_effect, intraclass_correlation
from driftscope.boundary.json_document import written_property

ENOUGH_CLUSTERS = 100
"""Number of clusters from which an interval is wide enough although length goes with ease."""
FEWEST_CORRELATED = 3
"""Smallest number of clusters over which anything can be correlated."""
MOST_CORRELATION = 0.3
"""Correlation of a cluster's rounds and acceptance length that is still harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Independence:
    """Clusters of the requests that have a round, and their effect on the acceptance length."""

    noun: str
    """Word for one cluster, such as "prompt" or "session"."""
    clusters: int
    requests: int
    """Number of requests with a round."""
    effective: float | None
    """Number of clusters of equal weight that the clusters are worth; None without a round."""
    design_effect: float | None
    """Variance of the acceptance length over clusters, divided by that over requests; None if it is
    not known."""
    icc: float | None
    """Correlation of the acceptance of two requests of one cluster; None if no cluster has two."""
    crossed: int
    """Number of prompts, if they cross the clusters, so that the variance is over both; else 0."""
    seen: bool
    """Whether the recording shows which prompts repeat, or the user chose the clusters."""
    suspected: bool
    """Whether clusters are requests that only look alike."""
    length_correlation: float | None = None
    """Correlation over clusters of the number of rounds and the acceptance length; None with fewer
    than three clusters, or if either is equal in all."""

    @written_property
    def worth(self) -> float | None:
        """Number of independent requests with as much information: requests over the design
        effect."""
        return self.requests / self.design_effect if self.design_effect else None

    @property
    def length_goes_with_ease(self) -> bool:
        """Whether the acceptance length depends on how long the answers are, and the clusters are
        too few for its interval to be wide enough, see docs/statistics.md."""
        if self.length_correlation is None or self.clusters >= ENOUGH_CLUSTERS:
            return False
        chance = 2.0 / math.sqrt(self.clusters)
        return abs(self.length_correlation) > max(MOST_CORRELATION, chance)

    @property
    def even(self) -> bool:
        """Whether the rounds are spread over the clusters: these are worth more than half as many
        clusters of equal weight."""
        return self.effective is not None and 2 * self.effective > self.clusters

    @property
    def repeated(self) -> bool:
        """Whether some cluster has more than one request."""
        return self.clusters < self.requests


def independence_of(rounds: Rounds, units: Units) -> Independence:
    """Return how independent the requests with these rounds are."""
    there = rounds.where(rounds.rounds > 0)
    over_clusters = there.comparable_ratio()
    over_requests = there.ungrouped().comparable_ratio()
    some = len(there.request) > 0
    tokens, n = there.comparable_tokens()[:, 0], there.rounds.astype(np.float64)
    return Independence(
        noun=units.noun,
        clusters=len(np.unique(there.cluster)),
        requests=len(there.request),
        effective=float(over_clusters.df[0]) + 1.0 if some else None,
        design_effect=design_effect(over_clusters, over_requests) if some else None,
        icc=intraclass_correlation(tokens, n, there.cluster) if some else None,
        crossed=0 if there.crossed is None else len(np.unique(there.crossed)),
        seen=units.seen,
        suspected=units.suspected,
        length_correlation=_length_correlation(there.by_cluster()),
    )


def _length_correlation(clusters: Rounds) -> float | None:
    """Return the correlation of rounds and acceptance length, over rows that each have a round."""
    n = clusters.rounds.astype(np.float64)
    if len(n) < FEWEST_CORRELATED:
        return None
    length = clusters.comparable_tokens()[:, 0] / n
    if np.ptp(n) == 0 or np.ptp(length) == 0:
        return None
    return float(np.corrcoef(n, length)[0, 1])
