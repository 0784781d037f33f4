"""Fall of acceptance along the chain, in spite of the survivors.

Rounds that reach a depth are the easy ones: hard rounds ended before. Where difficulty differs
between rounds, the conditional rate of a drafter that guesses every depth alike therefore rises
with depth (survivors of mixed populations: Vaupel and Yashin 1985,
https://doi.org/10.1080/00031305.1985.10479424), and comparing each depth with the first one is
blind. What cannot come from survivors is a rate that falls from one depth to a deeper one. It is a
lower bound of what the depth costs, because survivors hide a part. Rates that do not fall show
nothing: how much they hide is not identified by acceptance alone.

All pairs of depths are tested together, by the largest |t| over random signs of the clusters
(`permutation.departure`), so that choosing the largest fall is accounted for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.permutation import departure
from driftscope.analysis.statistics.ratio import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFall:
    """The surest fall of the conditional rate from one depth to a deeper one."""

    first: int
    """Depth from which it falls, from 1."""
    depth: int
    """Depth to which it falls."""
    lost: float
    """Conditional rate at `first` minus that at `depth`; below 0 if every depth accepts more than
    those before."""
    interval: Interval
    """95% interval of `lost`, simultaneous for all pairs of depths."""


def chain_fall(conditional: Ratio) -> ChainFall | None:
    """Return the fall whose interval lies highest, from conditional rates by depth, [K]; None if no
    two depths can be compared."""
    first, deeper = np.triu_indices(len(conditional.value), k=1)
    if not len(first):
        return None
    joint = departure(conditional.at(first).minus(conditional.at(deeper)))
    half = joint.critical * joint.error
    low = np.where((joint.error > 0) & np.isfinite(half), joint.gap - half, -np.inf)
    pair = int(np.argmax(low))
    interval = Interval.of(float(low[pair]), float(joint.gap[pair] + half[pair]))
    if interval is None:
        return None
    return ChainFall(
        first=int(first[pair]) + 1,
        depth=int(deeper[pair]) + 1,
        lost=float(joint.gap[pair]),
        interval=interval,
    )
