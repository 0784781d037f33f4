"""How many independent units a run's requests come from, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftscope.analysis.figures.round_sums import Rounds
from driftscope.analysis.figures.units import Units
from driftscope.analysis.statistics.clusters import design_effect, intraclass_correlation


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

    @property
    def worth(self) -> float | None:
        """Number of independent requests with as much information: requests over the design
        effect."""
        return self.requests / self.design_effect if self.design_effect else None

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
    )
