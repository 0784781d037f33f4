"""Attention drift of a run, from its chains by cluster of requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from driftscope.analysis.figures.chain_shape import Shape
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.verified_chains import chain_sample
from driftscope.analysis.passes.distances import CLUSTERED, distance_column, distances
from driftscope.analysis.query.column_arrays import Codes, Matrix, sums, whole
from driftscope.analysis.query.query_engine import Later
from driftscope.analysis.statistics.drift import (
    AttentionDrift,
    DistanceSums,
    MatchedSums,
    SinkSums,
    Source,
    drift_by_distance,
    drift_in_matched_rounds,
    sink_kept,
)
from driftscope.errors import DamagedTraceError
from driftscope.vocabulary import DISTANCE_MASS, NULL_MASS, SELF_MASS, SINK_MASS

CHAINS_LOOKED_AT = 100_000
"""Number of chains that are looked at; of more chains, a sample."""


def attention_drift(run: Sums, cluster: Codes) -> Later[AttentionDrift | None]:
    """Read the masses that give the attention drift of a run, to be computed later; None if its
    drafter has one depth or no attention.

    `cluster` is the cluster of each request, [requests]. Raises DamagedTraceError for masses by
    distance that no writer produces.
    """
    if run.shape.depths < 2 or SELF_MASS in run.shape.absent or not run.recorded.any():
        return Later(lambda: None)
    sample = chain_sample(run, CHAINS_LOOKED_AT)
    sample.show(run, CLUSTERED, cluster)
    in_steps = sample.steps is not None
    edges = _edges(run)
    parts = []
    for derived in run.tables.parts:
        run.tables.use(derived)
        parts.append(run.tables.engine.rows(distances(run.shape, derived, len(edges), in_steps)))
    table = _by_cluster(pa.concat_tables(parts, promote_options="permissive"))
    if edges and whole(table, "misfits").sum():
        raise DamagedTraceError(
            f"{run.tables.path}: draft rows whose {DISTANCE_MASS} is not K times layers times "
            f"{len(edges)} long; the run's files are damaged or not from one run"
        )
    return Later(lambda: _drift(table, run.shape, edges) if SELF_MASS in run.chains.means else None)


def _drift(table: pa.Table, shape: Shape, edges: tuple[int, ...]) -> AttentionDrift:
    """Return the drift by distance if enough chains have it, else in matched rounds; with the
    sink's share."""
    depths = shape.depths
    found = AttentionDrift(depths=depths)
    if edges:
        found = drift_by_distance(_distance_sums(table, depths, len(edges)), edges)
    if found.source is Source.NONE:
        matched = drift_in_matched_rounds(_matched_sums(table, depths))
        if matched.source is not Source.NONE or matched.chains > found.chains:
            found = matched
    return replace(found, sink_kept=sink_kept(_sink_sums(table)))


def _edges(run: Sums) -> tuple[int, ...]:
    """Return the first distance of each bin; () if no chain has masses by distance, or if the bins
    do not separate the places that the chain takes."""
    edges = run.tables.manifest.distance_edges
    single = tuple(range(run.shape.depths))
    rising = all(a < b for a, b in pairwise(edges))
    if DISTANCE_MASS in run.shape.absent or not rising or edges[: len(single)] != single:
        return ()
    return edges


def _by_cluster(table: pa.Table) -> pa.Table:
    """Return one row per cluster, in order of its number; clusters may have chains in several
    layouts of files."""
    number, at = np.unique(whole(table, "cluster"), return_inverse=True)
    columns = {
        name: np.bincount(at, weights=sums(table, name), minlength=len(number))
        for name in table.column_names
        if name != "cluster"
    }
    return pa.table({"cluster": number, **columns})


def _sink_sums(table: pa.Table) -> SinkSums:
    return SinkSums(
        chains=whole(table, "sink_chains"),
        weight=sums(table, "sink_weight"),
        first=sums(table, "sink_first"),
        last=sums(table, "sink_last"),
        even=sums(table, "sink_even"),
    )


def _matched_sums(table: pa.Table, depths: int) -> MatchedSums:
    def by_depth(name: str) -> Matrix:
        columns = [sums(table, f"{name}_{depth}") for depth in range(1, depths)]
        return np.column_stack([np.zeros(table.num_rows), *columns])

    return MatchedSums(
        chains=by_depth("matched_chains").astype(np.int64),
        weight=by_depth("matched_weight"),
        excess=by_depth("matched_excess"),
    )


def _distance_sums(table: pa.Table, depths: int, bins: int) -> DistanceSums:
    def by_depth(name: str) -> Matrix:
        return np.column_stack([sums(table, f"{name}_{depth}") for depth in range(depths)])

    places = [
        np.column_stack([sums(table, distance_column(depth, at)) for at in range(bins)])
        for depth in range(depths)
    ]
    return DistanceSums(
        chains=whole(table, "distance_chains"),
        weight=sums(table, "distance_weight"),
        bins=np.stack(places, axis=1),
        sink=by_depth(SINK_MASS),
        null=by_depth(NULL_MASS),
        own=by_depth(SELF_MASS),
    )
