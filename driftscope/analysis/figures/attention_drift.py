"""Attention drift of a run, from its chains by cluster of requests: attention by distance from the
query, and in matched rounds.

A chain is in a matched round if its output has d - 1 tokens, for a depth d from 2 to K: the mass on
verified output at depth 1 is then that of the d - 1 nearest places, which the chain itself takes at
depth d.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from driftscope.analysis.figures.chain_shape import Elements, Shape
from driftscope.analysis.figures.chains import deep_enough
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.verified_chains import chain_sample
from driftscope.analysis.query.query_engine import Codes, Later, Matrix, sums, whole
from driftscope.analysis.query.record_views import Derived, sampled
from driftscope.analysis.statistics.drift import (
    SINK_FLOOR,
    SINK_TIMES_EVEN,
    AttentionDrift,
    DistanceSums,
    LongSums,
    MatchedSums,
    SinkSums,
    Source,
    drift_by_distance,
    drift_in_matched_rounds,
    with_sink,
)
from driftscope.errors import DamagedTraceError
from driftscope.metrics import attention
from driftscope.metrics.attention import finite
from driftscope.vocabulary import DISTANCE_MASS, GENERATED_MASS, NULL_MASS, SELF_MASS, SINK_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir

CLUSTERED = "requests_by_distance"
"""Name of the view of the requests whose chains are looked at, with the cluster of each."""
SUM_WITHIN = 1e-2
"""Largest deviation from 1 of the sum of a query's masses: a sealed file rounds each of a few dozen
to 2^-17, and a float16 cache to 2^-11."""


def distance_column(depth: int, bin_: int) -> str:
    """Return the column of the mass in a bin at a depth, both from 0."""
    return f"bin_{depth}_{bin_}"


@cache
def distances(shape: Shape, derived: Derived, bins: int, in_steps: bool) -> ir.Table:
    """Sum the chains of one file layout by cluster. `bins` is the number of distances, 0 if no
    chain has masses by distance; `in_steps` is that of `record_views.sampled`."""
    import ibis

    rows = sampled(deep_enough(shape), CLUSTERED, in_steps)
    lists = Elements(rows, dict(derived), shape)
    chains = rows.select(
        "cluster",
        weight=1.0 / rows.rate,
        **_sink(rows, lists, shape),
        **_matched(rows, lists, shape),
        **(_by_distance(rows, lists, shape, bins) if bins else {}),
    )
    both = finite(chains.sink_first) & finite(chains.sink_last) & ~chains.doubtful
    known = both.fill_null(False)
    long = known & (SINK_TIMES_EVEN * chains.sink_even <= SINK_FLOOR).fill_null(False)

    def add(value: Any, mine: Any = known) -> Any:
        return ibis.ifelse(mine, value * chains.weight, 0.0).sum()

    matched: dict[str, Any] = {}
    for depth in range(1, shape.depths):
        mine = (chains.matched == depth).fill_null(False)
        matched[f"matched_chains_{depth}"] = mine.cast("int64").sum()
        matched[f"matched_weight_{depth}"] = ibis.ifelse(mine, chains.weight, 0.0).sum()
        matched[f"matched_excess_{depth}"] = ibis.ifelse(
            mine, chains.excess * chains.weight, 0.0
        ).sum()
    return chains.group_by("cluster").aggregate(
        **{
            "sink_chains": known.cast("int64").sum(),
            "sink_weight": ibis.ifelse(known, chains.weight, 0.0).sum(),
            "long_chains": long.cast("int64").sum(),
            "long_weight": ibis.ifelse(long, chains.weight, 0.0).sum(),
            "long_first": add(chains.sink_first, long),
            **{name: add(chains[name]) for name in ("sink_first", "sink_last", "sink_even")},
        },
        **matched,
        **(_sums_by_distance(chains, shape, bins) if bins else {}),
    )


def _sink(rows: ir.Table, lists: Elements, shape: Shape) -> dict[str, Any]:
    """Return the sink's mass at depths 1 and K, its mass with even attention, and whether the
    drafter's cache is in doubt."""
    visible = attention.visible_sink(rows.position, shape.sink_slots)
    return {
        "sink_first": _mass(lists, shape, SINK_MASS, 0),
        "sink_last": _mass(lists, shape, SINK_MASS, shape.depths - 1),
        "sink_even": attention.even_share(rows.position, visible),
        "doubtful": rows.chunked_prefill.fill_null(False),
    }


def _matched(rows: ir.Table, lists: Elements, shape: Shape) -> dict[str, Any]:
    """Return the depth, from 0, for which a chain is in a matched round, and its own excess there;
    both null if there is none.

    Output slots of the sink set belong to no other class, so the prompt has to hold all of the set.
    """
    import ibis

    nothing = ibis.null("int64")
    if SELF_MASS in shape.absent:
        return {"matched": nothing, "excess": ibis.null("float64")}
    tokens = rows.position - rows.prompt_tokens + 1
    mine = tokens.between(1, shape.depths - 1) & (
        rows.prompt_tokens > max(shape.sink_slots, default=-1)
    )
    place = ibis.ifelse(mine, tokens, 0)
    own = attention.over_layers(lists.layers(SELF_MASS, place))
    excess = own - _mass(lists, shape, GENERATED_MASS, 0)
    mine = mine & finite(excess).fill_null(False)
    return {
        "matched": ibis.ifelse(mine, tokens, nothing),
        "excess": ibis.ifelse(mine, excess, ibis.null("float64")),
    }


def _by_distance(rows: ir.Table, lists: Elements, shape: Shape, bins: int) -> dict[str, Any]:
    """Return the masses by depth and bin, on the sink, on nothing and on the chain itself, averaged
    over layers; and whether they are `whole`: each query's masses are finite and sum to 1."""
    import ibis

    there = rows[DISTANCE_MASS].notnull()
    fits = (rows[DISTANCE_MASS].length() == rows.k * rows.layers * bins).fill_null(False)
    whole = fits
    by_layer: list[list[list[ir.FloatingColumn]]] = []
    for depth in range(shape.depths):
        layers = [_bins(rows, depth * shape.layers + n, bins) for n in range(shape.layers)]
        by_layer.append(layers)
        for n, values in enumerate(layers):
            others = [_element(lists, shape, name, depth, n) for name in (SINK_MASS, NULL_MASS)]
            off = (_total([*values, *others]) - 1.0).abs()
            whole &= (off < SUM_WITHIN).fill_null(False)
    columns = {
        distance_column(depth, at): _total([layer[at] for layer in layers]) / len(layers)
        for depth, layers in enumerate(by_layer)
        for at in range(bins)
    }
    for depth in range(shape.depths):
        for name in (SINK_MASS, NULL_MASS, SELF_MASS):
            mass = _mass(lists, shape, name, depth)
            columns[f"{name}_{depth}"] = ibis.ifelse(finite(mass).fill_null(False), mass, 0.0)
    return {**columns, "whole": whole, "misfits": there & ~fits, "with_distances": there}


def _bins(rows: ir.Table, query: int, bins: int) -> list[ir.FloatingColumn]:
    """Return the masses of one query, a depth in a layer."""
    flat = rows[DISTANCE_MASS]
    return [flat[query * bins + at].cast("float64") for at in range(bins)]


def _element(lists: Elements, shape: Shape, name: str, depth: int, layer: int) -> Any:
    """Return a mass in one layer, 0 where the class does not apply."""
    import ibis

    if name in shape.absent:
        return 0.0
    value = lists.layers(name, depth)[layer]
    return ibis.ifelse(finite(value).fill_null(False), value, 0.0)


def _mass(lists: Elements, shape: Shape, name: str, depth: int) -> ir.FloatingColumn:
    """Return a mass averaged over layers; null if no chain has the class."""
    import ibis

    if name in shape.absent:
        return ibis.null("float64")
    return attention.over_layers(lists.layers(name, depth))


def _total(values: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, values)


def _sums_by_distance(chains: ir.Table, shape: Shape, bins: int) -> dict[str, Any]:
    import ibis

    places = [distance_column(depth, at) for depth in range(shape.depths) for at in range(bins)]
    others = [
        f"{name}_{depth}"
        for depth in range(shape.depths)
        for name in (SINK_MASS, NULL_MASS, SELF_MASS)
    ]

    def add(value: Any) -> Any:
        # `whole` is long, and is computed once here: in each column it would be repeated.
        return ibis.ifelse(chains.whole, value, 0.0).sum()

    last = shape.depths - 1
    shift = _total(
        [
            chains[distance_column(last, at)] - chains[distance_column(0, at)]
            for at in range(min(last, bins))
        ]
    )
    return {
        "squares": add(shift * shift * chains.weight),
        "distance_chains": chains.whole.cast("int64").sum(),
        "distance_weight": add(chains.weight),
        "misfits": chains.misfits.cast("int64").sum(),
        "with_distances": chains.with_distances.cast("int64").sum(),
        **{name: add(chains[name] * chains.weight) for name in (*places, *others)},
    }


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
    found = run.tables.of_parts(lambda derived: distances(run.shape, derived, len(edges), in_steps))
    number, at = np.unique(whole(found, "cluster"), return_inverse=True)
    columns = {
        name: np.bincount(at, weights=sums(found, name), minlength=len(number))
        for name in found.column_names
        if name != "cluster"
    }
    table = pa.table({"cluster": number, **columns})
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
        bins = len(edges)

        def by_depth(name: str) -> Matrix:
            return np.column_stack([sums(table, f"{name}_{depth}") for depth in range(depths)])

        places = [
            np.column_stack([sums(table, distance_column(depth, at)) for at in range(bins)])
            for depth in range(depths)
        ]
        found = drift_by_distance(
            DistanceSums(
                chains=whole(table, "distance_chains"),
                weight=sums(table, "distance_weight"),
                bins=np.stack(places, axis=1),
                sink=by_depth(SINK_MASS),
                null=by_depth(NULL_MASS),
                own=by_depth(SELF_MASS),
                squares=sums(table, "squares"),
            ),
            edges,
        )
    if found.source is Source.NONE:
        matched = drift_in_matched_rounds(_matched_sums(table, depths))
        found = found if matched.source is Source.NONE else matched
    return with_sink(
        found,
        SinkSums(
            chains=whole(table, "sink_chains"),
            weight=sums(table, "sink_weight"),
            first=sums(table, "sink_first"),
            last=sums(table, "sink_last"),
            even=sums(table, "sink_even"),
            long=LongSums(
                chains=whole(table, "long_chains"),
                weight=sums(table, "long_weight"),
                first=sums(table, "long_first"),
            ),
        ),
    )


def _edges(run: Sums) -> tuple[int, ...]:
    """Return the first distance of each bin; () if no chain has masses by distance, or if the bins
    do not separate the places that the chain takes."""
    edges = run.tables.manifest.distance_edges
    single = tuple(range(run.shape.depths))
    rising = all(a < b for a, b in pairwise(edges))
    if DISTANCE_MASS in run.shape.absent or not rising or edges[: len(single)] != single:
        return ()
    return edges


def _matched_sums(table: pa.Table, depths: int) -> MatchedSums:
    def by_depth(name: str) -> Matrix:
        columns = [sums(table, f"{name}_{depth}") for depth in range(1, depths)]
        return np.column_stack([np.zeros(table.num_rows), *columns])

    return MatchedSums(
        chains=by_depth("matched_chains").astype(np.int64),
        weight=by_depth("matched_weight"),
        excess=by_depth("matched_excess"),
    )
