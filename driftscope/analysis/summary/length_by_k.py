"""Acceptance length that a run would have had with a smaller K, from its own rounds.

The rounds of each request are joined into one sequence of matches and misses, and this sequence is
cut anew into rounds of at most K' matches and one token of the target. A run of m matches and a
miss is then served in floor(m / (K' + 1)) + 1 rounds.

This is exact if it lies in the text whether a token is guessed: a fresh chain then guesses the same
tokens right as the chain that ran. Cutting off each chain after K' tokens would then be too low,
because the next round begins where the longer chain was at its worst depths. If it lies in the
depth instead, cutting off is exact and this is too low: by up to 5 % for a simulated drafter that
drifts. `make prediction` compares both with live runs of each K'.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import evenly
from driftscope.analysis.figures.results import LengthAtK
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.query.query_engine import Later
from driftscope.analysis.query.record_views import REQUEST, clusters, table
from driftscope.analysis.statistics.ratio import ratio_intervals

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


ROUNDS_IN_ORDER = 500_000
"""Number of rounds that are put in order; of more rounds, those of evenly spread requests."""
Counts = NDArray[np.int64]


def lengths_by_k(run: Sums) -> Later[tuple[LengthAtK, ...]]:
    """Read what gives the acceptance length for K = 1 .. the one that ran, to be computed later; ()
    for a run of several K, whose rounds do not show what a longer chain would have matched."""
    if run.shape.mixed or not len(run.rounds):
        return Later(tuple)
    there = np.flatnonzero(run.rounds.rounds > 0)
    chosen = evenly(run.rounds.request[there], run.rounds.rounds[there], ROUNDS_IN_ORDER)
    view = run.requests.keys.take(pa.array(chosen, pa.int64()))
    view = view.append_column("cluster", pa.array(np.arange(len(chosen)), pa.int64()))
    run.tables.engine.view(IN_ORDER, view, view.schema)
    runs = run.tables.engine.rows(match_runs())
    return Later(
        lambda: recut(
            np.unique(run.clusters[chosen][whole(runs, "cluster")], return_inverse=True)[1],
            whole(runs, "matches"),
            whole(runs, "missed"),
            whole(runs, "runs"),
            k=run.shape.k,
        )
    )


def recut(
    cluster: Counts, matches: Counts, missed: Counts, runs: Counts, *, k: int
) -> tuple[LengthAtK, ...]:
    """Return the acceptance length for K = 1 .. `k` from counts of runs of matches, [kinds] each:
    their cluster, length, whether (1) or not (0) a miss ends them, and their number."""
    n = int(cluster.max(initial=-1)) + 1
    tokens = np.bincount(cluster, weights=runs * (matches + missed), minlength=n).astype(np.float64)
    return tuple(_at(each, cluster, matches, missed, runs, tokens) for each in range(1, k + 1))


def _at(
    k: int,
    cluster: Counts,
    matches: Counts,
    missed: Counts,
    runs: Counts,
    tokens: NDArray[np.float64],
) -> LengthAtK:
    """Return the acceptance length for `k`; `tokens` are those of each cluster, [clusters]."""
    whole_rounds, left = np.divmod(matches, k + 1)
    rounds = whole_rounds + np.where(missed > 0, 1, left > 0)
    counts = np.bincount(cluster, weights=runs * rounds, minlength=len(tokens))
    of_cluster = counts.astype(np.float64)
    spread = ratio_intervals(tokens[:, None], of_cluster[:, None])
    return LengthAtK(
        k=k,
        mean_length=float(tokens.sum() / of_cluster.sum()),
        mean_length_interval=spread[0] if spread else None,
    )
