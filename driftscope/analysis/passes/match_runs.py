"""Pass over the rounds of requests in order: runs of tokens that the drafter guessed right."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.query.record_views import REQUEST, clusters, table

if TYPE_CHECKING:
    import ibis.expr.types as ir

IN_ORDER = "in_order"
"""Name of the view of the requests whose rounds are read in order."""


@cache
def match_runs() -> ir.Table:
    """Count the runs of matching tokens of the requests in IN_ORDER, by request and length.

    A round that accepts fewer tokens than it drafted ends a run, with a miss. A round that accepts
    all of them goes on: its tokens and the one that the target adds, which no drafter was asked
    for, count as matches. A step without a draft, and the end of the request, end a run without a
    miss.
    """
    import ibis

    rows = table("verify").join(clusters(IN_ORDER), REQUEST)
    drafted, accepted = rows.drafted.fill_null(0), rows.accepted.fill_null(0)
    whole = (drafted > 0) & (accepted >= drafted)
    missed = (drafted > 0) & (accepted < drafted)
    rows = rows.select(
        "cluster",
        "time_s",
        "position",
        ends=(~whole).cast("int64"),
        missed=missed.cast("int64"),
        matches=accepted + whole.cast("int64"),
    )
    before = ibis.window(
        group_by="cluster", order_by=(rows.time_s, rows.position), preceding=(None, 1)
    )
    rows = rows.mutate(run=rows.ends.sum().over(before).fill_null(0))
    runs = rows.group_by("cluster", "run").aggregate(
        matches=lambda t: t.matches.sum(), missed=lambda t: t.missed.max()
    )
    runs = runs.filter((runs.matches > 0) | (runs.missed > 0))
    return runs.group_by("cluster", "matches", "missed").aggregate(runs=lambda t: t.count())
