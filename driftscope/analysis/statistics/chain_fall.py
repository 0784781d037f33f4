"""Fall of acceptance along the chain, in spite of the survivors.

Rounds that reach a depth are the easy ones: hard rounds ended before. Where difficulty differs
between rounds, the conditional rate of a drafter that guesses every depth alike therefore rises
with depth (survivors of mixed populations: Vaupel and Yashin 1985,
https://doi.org/10.1080/00031305.1985.10479424), and comparing each depth with the first one is
blind. What cannot come from survivors is a rate that falls from one depth to a deeper one.

Requests differ more than the rounds of one do, and hard requests have few rounds that get deep. So
both depths are compared within requests, each with the weight n' of its rounds that get to the
deeper one: the mean of n' (h - 1) / (n - 1) - h', where n and n' are the rounds that get to the two
depths and h and h' those accepted there. One hit is left out because every round that gets deeper
is one: with it, requests that are lucky at the first depth would weigh more. What is left of
survivors, among the rounds of a request, hides a part of the fall, which is therefore a lower bound
of what the depth costs. Rates that do not fall show nothing: how much they hide is not identified
by acceptance alone.

All pairs of depths are tested together, by the largest |t| over random signs of the clusters
(`permutation.departure`), so that choosing the largest fall is accounted for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.permutation import departure
from driftscope.analysis.statistics.ratio import Ratio, ratio_of

Counts = NDArray[np.int64]
OverClusters = Callable[..., Ratio]
"""Returns the ratios of columns of requests, over the clusters of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFall:
    """The surest fall of the conditional rate from one depth to a deeper one."""

    first: int
    """Depth from which it falls, from 1."""
    depth: int
    """Depth to which it falls."""
    rate: float
    """Conditional rate at `depth`."""
    lost: float
    """Conditional rate at `first` minus that at `depth`, within requests; below 0 if every depth
    accepts more than those before."""
    interval: Interval
    """95% interval of `lost`, simultaneous for all pairs of depths."""


def chain_fall(reached: Counts, at_risk: Counts, over_clusters: OverClusters) -> ChainFall | None:
    """Return the fall whose interval lies highest, from the rounds of each request that accept a
    depth and those that get to it, [requests, K]; None if no two depths can be compared."""
    first, deeper = np.triu_indices(reached.shape[1], k=1)
    if not len(first):
        return None
    known = at_risk[:, first] > 1
    before = (reached[:, first] - 1) / np.maximum(at_risk[:, first] - 1, 1)
    weight, after = at_risk[:, deeper] * known, reached[:, deeper] * known
    joint = departure(over_clusters(ratio_of, weight * before - after, weight))
    half = joint.critical * joint.error
    low = np.where((joint.error > 0) & np.isfinite(half), joint.gap - half, -np.inf)
    pair = int(np.argmax(low))
    interval = Interval.of(float(low[pair]), float(joint.gap[pair] + half[pair]))
    if interval is None:
        return None
    return ChainFall(
        first=int(first[pair]) + 1,
        depth=int(deeper[pair]) + 1,
        rate=float(after[:, pair].sum() / weight[:, pair].sum()),
        lost=float(joint.gap[pair]),
        interval=interval,
    )
