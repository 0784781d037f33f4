"""Comparison of two kinds of rounds inside each request, so that requests do not differ in it.

A request that has rounds of both kinds in a stratum has the weight of Mantel and Haenszel (1959),
n m / (n + m) for its n and m rounds of the two kinds. The share kept is the ratio of two sums over
requests, whose variance is that of the jackknife over clusters, see
`driftscope.analysis.statistics.clusters`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftscope.analysis.query.column_arrays import Codes, Matrix
from driftscope.analysis.statistics.clusters import ratio_over
from driftscope.analysis.statistics.contrast import Contrast, nothing_kept
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals
from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio, ratio_of
from driftscope.analysis.statistics.intervals.degrees_of_freedom import two_sided
from driftscope.analysis.statistics.intervals.interval import Interval

EACH_REQUEST = "each request"
"""Name of the strata of such a comparison."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halves:
    """Rounds of two kinds by request and stratum, [rows, 2] or [rows]."""

    accepted: Matrix
    """Accepted tokens of the first and the second kind, comparable between kinds, [rows, 2]."""
    rounds: Matrix
    """Rounds of both kinds, [rows, 2]."""
    request: Codes
    cluster: Codes
    crossed: Codes | None = None
    """Other cluster of each row, if clusters are of two kinds."""


def within_requests(halves: Halves, first: str, second: str) -> Contrast | None:
    """Compare the second kind with the first inside each request; None if no request has both, or
    if the first kind accepts nothing."""
    both = (halves.rounds > 0).all(axis=1)
    rounds, accepted = halves.rounds[both], halves.accepted[both]
    share = rounds[:, ::-1] / rounds.sum(axis=1, keepdims=True)
    weighted = share * accepted
    if not both.any() or not weighted[:, 0].sum() > 0:
        return None
    weight = float((share[:, 0] * rounds[:, 0]).sum())
    ratio = ratio_over(
        ratio_of,
        [weighted[:, [1]], weighted[:, [0]]],
        halves.cluster[both],
        None if halves.crossed is None else halves.crossed[both],
    )
    accepted_of_first = float(weighted[:, 0].sum()) / weight
    kept = float(ratio.value[0])
    interval, p = (
        _tested(ratio)
        if kept
        else nothing_kept(
            int(rounds[:, 1].sum()), accepted_of_first, supported=bool(ratio.supported[0])
        )
    )
    return Contrast(
        first=first,
        second=second,
        first_length=1.0 + accepted_of_first,
        second_length=1.0 + float(weighted[:, 1].sum()) / weight,
        kept=kept,
        kept_interval=interval,
        p=p,
        requests=len(np.unique(halves.request[both])),
        strata=(EACH_REQUEST,),
    )


def _tested(ratio: Ratio) -> tuple[Interval | None, float | None]:
    """Return the 95% interval of the share kept, and the p-value for all being kept."""
    spread, error = intervals(ratio), float(ratio.error[0])
    if spread is None or spread[0] is None or not error > 0:
        return None, None
    p = two_sided(np.array((float(ratio.value[0]) - 1.0) / error), ratio.df[0])
    return spread[0].within(0.0, np.inf), float(p)
