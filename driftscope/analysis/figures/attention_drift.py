"""Attention drift against a recency-matched null.

The null: at every depth the expected attention by distance from the query, and that on the sink, is
that of depth 1. A drafter that prefers recent tokens at every depth meets it, although its own
draft tokens get more attention with every depth: they take the nearest places.

For chain c and the query of depth d let N_c(d) be its mass at distances 0 .. K - 2, without sink
slots and null. These are the places that the chain itself takes at depth K. Over chains, weighted
by 1 / rate,

    near shift   D(d) = mean of N_c(d) - N_c(1)
    own excess   E(d) = mean of self_c(d) - (depth-1 mass at distances 0 .. d - 2)
    sink kept    S    = sum of sink_c(K) / sum of sink_c(1)
    total variation  TV(d) = 1/2 sum over bins, sink and null of |q(d) - q(1)|

D splits into the step D(2), a drafter's first token of its own, and the trend D(K) - D(2), which
grows with depth. At depth K the chain takes all of the places, so that E(K) = D(K).

Each figure is a ratio of sums over clusters, with the jackknife's error and Student's quantile
(`interval.ratio_of`; Cameron and Miller 2015, CV3). The answer compares 95 % intervals with MARGIN,
on both sides for "no drift" (two one-sided tests, Schuirmann 1987). p-values by depth are adjusted
by the largest |t| over random signs of the clusters (`joint_difference.departure`; Romano 1989).
The drift and its size are those of arXiv 2605.09992."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from driftscope.analysis.figures.chains import Elements, Shape, deep_enough
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.query_engine import Codes, Matrix, rows_of, sums_column, whole
from driftscope.analysis.query.record_views import Derived, sampled
from driftscope.analysis.statistics.intervals import Array, Estimate
from driftscope.analysis.statistics.permutation import departure
from driftscope.analysis.statistics.ratio import estimates, ratio_of
from driftscope.boundary.json_document import written_property
from driftscope.metrics import attention
from driftscope.metrics.attention import finite
from driftscope.vocabulary import DISTANCE_MASS, NULL_MASS, SELF_MASS, SINK_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir

MARGIN = 0.05
"""Near shift, as a share of the attention, up to which attention counts as staying where it is: a
third of the shift of the drifting drafter in arXiv 2605.09992 (0.17), above that of the healthy one
(0.03)."""
SINK_LOST_BELOW = 0.5
"""Share of its depth-1 mass below which the sink is lost at depth K. The drifting drafter of arXiv
2605.09992 kept 0.17, the healthy one 0.91; the middle is 0.54."""
SINK_KEPT_ABOVE = 0.8
"""Share above which the sink is kept: below the healthy drafter's 0.91, and above the middle."""
SINK_FLOOR = 0.05
"""Sink mass at depth 1: half of the weakest sink (0.11) that arXiv 2605.09992 reports for a model
that has one."""
SINK_TIMES_EVEN = 3.0
"""Ratio of a sink's mass to what even attention over the visible slots would give its slots.
Without this bound any first token of a short context would be a sink. In contexts so long that it
lies below SINK_FLOOR (60 tokens for each slot of the sink set) the floor alone decides."""
FEWEST_CLUSTERS = 10
"""Smallest number of clusters for an answer: with fewer, the error itself is not known."""
FEWEST_CHAINS = 50
"""Smallest number of chains with masses by distance, or with a sink, for an answer."""
MOST_APART = 2 * MARGIN
"""Standard deviation of the near shift between clusters up to which their mean stands for them: the
shipped pair has 0.04 to 0.05. Beyond it some requests drift, although others make up for them."""
NEAREST = 0.01
"""Distance from MARGIN below which a true shift is not pursued: one point would take 25 times the
clusters of MARGIN itself."""


class DriftAnswer(StrEnum):
    """Answer to whether attention drifts over depth."""

    DRIFT = "drift"
    NO_DRIFT = "no drift"
    """A near shift beyond MARGIN, and a lost sink, are excluded."""
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDistance:
    """Mean attention by distance, for the picture."""

    edges: tuple[int, ...]
    """First distance of each bin, in slots; the last bin has no end."""
    first: tuple[float, ...]
    """Mass in each bin at depth 1, which is also its expected value at every depth."""
    last: tuple[float, ...]
    """Mass in each bin at depth K."""
    sink: tuple[float, float]
    """Mass on the sink at depths 1 and K."""
    variation: tuple[float, ...]
    """Total variation from depth 1 by depth, from depth 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDrift:
    """Movement of a drafter's attention over depth, beyond the recency-matched null."""

    depths: int
    """K: number of depths of the chains."""
    clusters: int = 0
    """Clusters of the chains with masses by distance, also if they are too few for `shift`."""
    chains: int = 0
    shift: Estimate | None = None
    """D(K); None with too few chains that have masses by distance, as for the next figures."""
    near_shift: tuple[Estimate, ...] = ()
    """D(d) by depth, from depth 1 on."""
    p: tuple[float, ...] = ()
    """Adjusted p-value of D(d) = 0 by depth; NaN at depth 1."""
    first_step: Estimate | None = None
    """D(2)."""
    trend: Estimate | None = None
    """D(K) - D(2)."""
    apart: float | None = None
    """Standard deviation of D(K) between clusters, beside that of their chains; None if no cluster
    has two chains."""
    own_excess: tuple[Estimate, ...] = ()
    """E(d) by depth, from depth 1 on."""
    sink_kept: Estimate | None = None
    """S; None without a sink, or with too few chains to tell."""
    sink_first: Estimate | None = None
    """Mass on the sink set at depth 1, in long contexts; None with too few chains in these."""
    has_sink: bool | None = None
    """Whether this drafter looks at the sink set clearly more than even attention would; None if
    this cannot be told, as in short contexts."""
    distances: ByDistance | None = None

    @written_property
    def moves(self) -> bool | None:
        """Whether attention moves to near tokens by more than MARGIN; None if this cannot be
        told."""
        spread = self.shift.interval if self.shift else None
        if spread is None:
            return None
        return True if spread.low > MARGIN else False if spread.high < MARGIN else None

    @property
    def moves_apart(self) -> bool:
        """Whether attention moves in opposite directions in different requests, so that their mean
        hides it."""
        return self.apart is not None and self.apart > MOST_APART

    @written_property
    def loses_sink(self) -> bool | None:
        """Whether the sink is lost; None without a sink, or if this cannot be told."""
        spread = self.sink_kept.interval if self.sink_kept else None
        if spread is None:
            return None
        if spread.high < SINK_LOST_BELOW:
            return True
        return False if spread.low > SINK_LOST_BELOW else None

    @written_property
    def answer(self) -> DriftAnswer:
        """Whether attention drifts."""
        if self.moves or self.loses_sink:
            return DriftAnswer.DRIFT
        spread = self.shift.interval if self.shift else None
        if spread is None or not (spread.low > -MARGIN and spread.high < MARGIN):
            return DriftAnswer.CANNOT_TELL
        if self.moves_apart:
            return DriftAnswer.CANNOT_TELL
        kept = self.sink_kept.interval if self.sink_kept else None
        if self.sink_kept is not None and not (kept and kept.low > SINK_KEPT_ABOVE):
            return DriftAnswer.CANNOT_TELL
        return DriftAnswer.NO_DRIFT

    @written_property
    def wanted_clusters(self) -> int | None:
        """Number of clusters with which the interval of `shift` would be clear of MARGIN; None
        without an interval."""
        if self.shift is None or self.shift.interval is None:
            return None
        half = (self.shift.interval.high - self.shift.interval.low) / 2
        wanted = max(abs(abs(self.shift.value) - MARGIN), NEAREST)
        return int(np.ceil(self.clusters * max((half / wanted) ** 2, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistanceSums:
    """Weighted sums over the chains with masses by distance, by cluster."""

    chains: Codes
    """Number of chains, [clusters]."""
    weight: Array
    """Number of chains that these stand for, [clusters]."""
    bins: Matrix
    """Mass by depth and bin, [clusters, K, bins]."""
    sink: Matrix
    """Mass on the sink by depth, [clusters, K]; 0 without one."""
    null: Matrix
    own: Matrix
    """Mass on the chain itself, [clusters, K]."""
    squares: Array | None = None
    """Squares of the near shift at depth K, [clusters]; None if they were not summed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SinkSums:
    """Weighted sums over the chains with a sink mass at depths 1 and K, [clusters] each."""

    chains: Codes
    weight: Array
    first: Array
    last: Array
    even: Array
    """Mass that even attention over the visible slots would give the sink's slots."""
    long_chains: Codes
    """Like `chains`, `weight` and `first`, over contexts so long that SINK_FLOOR decides."""
    long_weight: Array
    long_first: Array


def drift_by_distance(sums_column: DistanceSums, edges: Sequence[int]) -> AttentionDrift:
    """Return the near shift and what belongs to it. `edges` are the first distances of the bins and
    hold each of 0 .. K - 1. Without enough chains only their number is returned."""
    has_chains = sums_column.weight > 0
    sums_column = rows_of(sums_column, has_chains)
    depths, clusters, chains = (
        sums_column.bins.shape[1],
        len(sums_column.chains),
        int(sums_column.chains.sum()),
    )
    if clusters < FEWEST_CLUSTERS or chains < FEWEST_CHAINS:
        return AttentionDrift(depths=depths, clusters=clusters, chains=chains)
    near = sums_column.bins[:, :, : depths - 1].sum(axis=2)
    shift = ratio_of(near - near[:, :1], sums_column.weight[:, None])
    before = np.cumsum(sums_column.bins[:, 0], axis=1)[:, : depths - 1]
    at_depth_1 = np.hstack([np.zeros((clusters, 1)), before])
    own = ratio_of(sums_column.own - at_depth_1, sums_column.weight[:, None])
    trend = ratio_of((near[:, -1] - near[:, 1])[:, None], sums_column.weight[:, None])
    by_depth = estimates(shift)
    total = sums_column.weight.sum()
    bins = sums_column.bins.sum(axis=0) / total
    others = np.stack([sums_column.sink.sum(axis=0), sums_column.null.sum(axis=0)], axis=1) / total
    every = np.hstack([bins, others])
    return AttentionDrift(
        depths=depths,
        clusters=clusters,
        chains=chains,
        shift=by_depth[-1],
        near_shift=by_depth,
        p=tuple(departure(shift).p.tolist()),
        first_step=by_depth[1],
        trend=estimates(trend)[0],
        apart=_between(near[:, -1] - near[:, 0], sums_column),
        own_excess=estimates(own),
        distances=ByDistance(
            edges=tuple(int(edge) for edge in edges),
            first=tuple(bins[0].tolist()),
            last=tuple(bins[-1].tolist()),
            sink=(float(others[0, 0]), float(others[-1, 0])),
            variation=tuple((0.5 * np.abs(every - every[0]).sum(axis=1)).tolist()),
        ),
    )


def _between(shift: Array, sums_column: DistanceSums) -> float | None:
    """Return the standard deviation of a mean shift between clusters, by an analysis of variance
    (Donner 1986), from its sums; None if no cluster has two chains."""
    n = sums_column.chains.astype(np.float64)
    mean = shift / sums_column.weight
    left = n.sum() - len(n)
    if sums_column.squares is None or not left > 0:
        return None
    within = float((n * (sums_column.squares / sums_column.weight - mean**2)).sum() / left)
    among = float((n * np.square(mean - np.average(mean, weights=n))).sum() / (len(n) - 1))
    typical = float((n.sum() - np.square(n).sum() / n.sum()) / (len(n) - 1))
    return float(np.sqrt(max(among - within, 0.0) / typical))


def with_sink(drift: AttentionDrift, sums_column: SinkSums) -> AttentionDrift:
    """Return the drift with whether there is a sink at depth 1, and the share that it keeps.

    It has a sink if its mass is surely above SINK_FLOOR and above SINK_TIMES_EVEN times the even
    share, in all contexts or in long ones; it has none only if the mass is surely below SINK_FLOOR
    in long contexts.
    """
    long = _sink_mass(sums_column.long_first, sums_column.long_weight, sums_column.long_chains)
    floor = _sink_mass(sums_column.first, sums_column.weight, sums_column.chains)
    beyond = _sink_mass(
        sums_column.first - SINK_TIMES_EVEN * sums_column.even,
        sums_column.weight,
        sums_column.chains,
    )
    has = _low(long) > SINK_FLOOR or (_low(floor) > SINK_FLOOR and _low(beyond) > 0.0)
    none = long is not None and long.interval is not None and long.interval.high < SINK_FLOOR
    used = sums_column.weight > 0
    kept = ratio_of(sums_column.last[used, None], sums_column.first[used, None]) if has else None
    return replace(
        drift,
        sink_first=long,
        has_sink=True if has else False if none else None,
        sink_kept=estimates(kept)[0] if kept is not None else None,
    )


def _sink_mass(mass: Array, weight: Array, chains: Codes) -> Estimate | None:
    """Return the mean of a mass over chains; None with too few of them."""
    has_chains = weight > 0
    if has_chains.sum() < FEWEST_CLUSTERS or chains[has_chains].sum() < FEWEST_CHAINS:
        return None
    return estimates(ratio_of(mass[has_chains, None], weight[has_chains, None]))[0]


def _low(estimate: Estimate | None) -> float:
    """Return the lower end of an estimate's interval; minus infinity without one."""
    spread = estimate.interval if estimate else None
    return -np.inf if spread is None else spread.low


SUM_WITHIN = 1e-2
"""Largest deviation from 1 of the sum of a query's masses: a sealed file rounds each of a few dozen
to 2^-17, and a float16 cache to 2^-11."""


def distance_column(depth: int, bin_: int) -> str:
    """Return the column of the mass in a bin at a depth, both from 0."""
    return f"bin_{depth}_{bin_}"


@cache
def distances(shape: Shape, derived: Derived, bins: int, in_steps: bool) -> ir.Table:
    """Sum the chains of one file layout by request. `bins` is the number of distances, 0 if no
    chain has masses by distance; `in_steps` is that of `record_views.sampled`."""
    import ibis

    rows = sampled(deep_enough(shape), in_steps)
    lists = Elements(rows, dict(derived), shape)
    visible = attention.visible_sink(rows.position, shape.sink_slots)
    chains = rows.select(
        "cluster",
        weight=1.0 / rows.rate,
        sink_first=_mass(lists, shape, SINK_MASS, 0),
        sink_last=_mass(lists, shape, SINK_MASS, shape.depths - 1),
        sink_even=attention.even_share(rows.position, visible),
        doubtful=rows.chunked_prefill.fill_null(False),
        **(_by_distance(rows, lists, shape, bins) if bins else {}),
    )
    both = finite(chains.sink_first) & finite(chains.sink_last) & ~chains.doubtful
    known = both.fill_null(False)
    long = known & (SINK_TIMES_EVEN * chains.sink_even <= SINK_FLOOR).fill_null(False)

    def add(value: Any, mine: Any = known) -> Any:
        return ibis.ifelse(mine, value * chains.weight, 0.0).sum()

    return chains.group_by("cluster").aggregate(
        **{
            "sink_chains": known.cast("int64").sum(),
            "sink_weight": ibis.ifelse(known, chains.weight, 0.0).sum(),
            "long_chains": long.cast("int64").sum(),
            "long_weight": ibis.ifelse(long, chains.weight, 0.0).sum(),
            "long_first": add(chains.sink_first, long),
            **{name: add(chains[name]) for name in ("sink_first", "sink_last", "sink_even")},
        },
        **(_sums_by_distance(chains, shape, bins) if bins else {}),
    )


def _by_distance(rows: ir.Table, lists: Elements, shape: Shape, bins: int) -> dict[str, Any]:
    """Return the masses by depth and bin, on the sink, on nothing and on the chain itself, averaged
    over layers; and whether they are `whole`: each query's masses are finite and sum to 1."""
    import ibis

    flat = rows[DISTANCE_MASS]
    whole = flat.notnull()
    by_layer: list[list[list[ir.FloatingColumn]]] = []
    for depth in range(shape.depths):
        begins = [(depth * shape.layers + n) * bins for n in range(shape.layers)]
        layers = [[flat[begin + at].cast("float64") for at in range(bins)] for begin in begins]
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
    return {**columns, "whole": whole}


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
        **{name: add(chains[name] * chains.weight) for name in (*places, *others)},
    }


def attention_drift(run: Sums, in_steps: bool) -> AttentionDrift | None:
    """Return the attention drift of a run; None if its drafter has one depth or no attention.
    `in_steps` is what `look_at` returned."""
    if run.shape.depths < 2 or SELF_MASS not in run.chains.means:
        return None
    # The first distance of each bin, if the bins separate the places that the chain takes.
    edges, single = run.tables.manifest.distance_edges, tuple(range(run.shape.depths))
    rising = all(a < b for a, b in pairwise(edges))
    if DISTANCE_MASS in run.shape.absent or not rising or edges[: len(single)] != single:
        edges = ()
    found = run.tables.of_parts(lambda derived: distances(run.shape, derived, len(edges), in_steps))
    unit = run.requests.units.unit[whole(found, "cluster")]
    number, at = np.unique(unit, return_inverse=True)
    columns = {
        name: np.bincount(at, weights=sums_column(found, name), minlength=len(number))
        for name in found.column_names
        if name != "cluster"
    }
    table = pa.table({"cluster": number, **columns})
    return _drift(table, run.shape, edges)


def _drift(table: pa.Table, shape: Shape, edges: tuple[int, ...]) -> AttentionDrift:
    """Return the drift by distance, with the sink's share."""
    depths = shape.depths
    found = AttentionDrift(depths=depths)
    if edges:
        bins = len(edges)

        def by_depth(name: str) -> Matrix:
            return np.column_stack(
                [sums_column(table, f"{name}_{depth}") for depth in range(depths)]
            )

        places = [
            np.column_stack([sums_column(table, distance_column(depth, at)) for at in range(bins)])
            for depth in range(depths)
        ]
        found = drift_by_distance(
            DistanceSums(
                chains=whole(table, "distance_chains"),
                weight=sums_column(table, "distance_weight"),
                bins=np.stack(places, axis=1),
                sink=by_depth(SINK_MASS),
                null=by_depth(NULL_MASS),
                own=by_depth(SELF_MASS),
                squares=sums_column(table, "squares"),
            ),
            edges,
        )
    return with_sink(
        found,
        SinkSums(
            chains=whole(table, "sink_chains"),
            weight=sums_column(table, "sink_weight"),
            first=sums_column(table, "sink_first"),
            last=sums_column(table, "sink_last"),
            even=sums_column(table, "sink_even"),
            long_chains=whole(table, "long_chains"),
            long_weight=sums_column(table, "long_weight"),
            long_first=sums_column(table, "long_first"),
        ),
    )
