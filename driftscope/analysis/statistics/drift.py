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
grows with depth. At depth K the chain takes all of the places, so that E(K) = D(K). A trace without
masses by distance has E(d) in rounds whose output is d - 1 tokens long ("matched rounds"): the mass
on verified output at depth 1 is then that of the last d - 1 places.

Each figure is a ratio of sums over clusters, with the jackknife's error and Student's quantile
(`interval.ratio_of`; Cameron and Miller 2015, CV3). The answer compares 95 % intervals with MARGIN,
on both sides for "no drift" (two one-sided tests, Schuirmann 1987). p-values by depth are adjusted
by the largest |t| over random signs of the clusters (`joint_difference.departure`; Romano 1989).
The drift and its size are those of arXiv 2605.09992.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from driftscope.analysis.query.query_engine import Codes, Matrix
from driftscope.analysis.statistics.intervals import Array, Interval
from driftscope.analysis.statistics.permutation import departure
from driftscope.analysis.statistics.ratio import Ratio, intervals, ratio_of
from driftscope.boundary.json_document import written_property

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
FEWEST_MATCHED = 100
"""Smallest number of chains in matched rounds for an answer; each tells of one depth only."""
MOST_APART = 2 * MARGIN
"""Standard deviation of the near shift between clusters up to which their mean stands for them: the
shipped pair has 0.04 to 0.05. Beyond it some requests drift, although others make up for them."""
NEAREST = 0.01
"""Distance from MARGIN below which a true shift is not pursued: one point would take 25 times the
clusters of MARGIN itself."""


class Answer(StrEnum):
    """Answer to whether attention drifts over depth."""

    DRIFT = "drift"
    NO_DRIFT = "no drift"
    """A near shift beyond MARGIN, and a lost sink, are excluded."""
    CANNOT_TELL = "cannot tell"


class Source(StrEnum):
    """Kind of rounds from which the near shift was estimated."""

    DISTANCES = "distances"
    """Chains with attention mass by distance."""
    MATCHED = "matched rounds"
    """Rounds within the first K - 1 output tokens."""
    NONE = "none"
    """Too few of either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate with its 95% interval, None where the data support none."""

    value: float
    interval: Interval | None


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
    source: Source = Source.NONE
    clusters: int = 0
    """Clusters behind `shift`; like `chains`, with masses by distance if there are too few."""
    chains: int = 0
    from_depth: int = 0
    """First depth of those over which `shift` is taken; K with masses by distance."""
    shift: Estimate | None = None
    """D(K); in matched rounds the mean of E(d) over the depths from `from_depth` to K."""
    near_shift: tuple[Estimate, ...] = ()
    """D(d) by depth, from depth 1 on; () without masses by distance."""
    p: tuple[float, ...] = ()
    """Adjusted p-value of D(d) = 0 by depth; NaN at depth 1."""
    first_step: Estimate | None = None
    """D(2)."""
    trend: Estimate | None = None
    """D(K) - D(2)."""
    apart: float | None = None
    """Standard deviation of D(K) between clusters, beside that of their chains; None if no cluster
    has two chains."""
    own_excess: tuple[Estimate | None, ...] = ()
    """E(d) by depth, from depth 1 on; None at a depth without chains."""
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
    def answer(self) -> Answer:
        """Whether attention drifts."""
        if self.moves or self.loses_sink:
            return Answer.DRIFT
        spread = self.shift.interval if self.shift else None
        if spread is None or not (spread.low > -MARGIN and spread.high < MARGIN):
            return Answer.CANNOT_TELL
        if self.moves_apart:
            return Answer.CANNOT_TELL
        kept = self.sink_kept.interval if self.sink_kept else None
        if self.sink_kept is not None and not (kept and kept.low > SINK_KEPT_ABOVE):
            return Answer.CANNOT_TELL
        return Answer.NO_DRIFT

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
class MatchedSums:
    """Weighted sums over the chains in matched rounds, [clusters, K] each; 0 at depth 1."""

    chains: Codes
    weight: Matrix
    excess: Matrix
    """Mass on the chain itself less the mass on verified output at depth 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SinkSums:
    """Weighted sums over the chains with a sink mass at depths 1 and K, [clusters] each."""

    chains: Codes
    weight: Array
    first: Array
    last: Array
    even: Array
    """Mass that even attention over the visible slots would give the sink's slots."""
    long: LongSums | None = None
    """Sums over those in contexts so long that SINK_FLOOR decides; None if they were not made."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LongSums:
    """Weighted sums over chains in long contexts, [clusters] each."""

    chains: Codes
    weight: Array
    first: Array


def drift_by_distance(sums: DistanceSums, edges: Sequence[int]) -> AttentionDrift:
    """Return the near shift and what belongs to it. `edges` are the first distances of the bins and
    hold each of 0 .. K - 1. Without enough chains only their number is returned."""
    there = sums.weight > 0
    sums = DistanceSums(
        chains=sums.chains[there],
        weight=sums.weight[there],
        bins=sums.bins[there],
        sink=sums.sink[there],
        null=sums.null[there],
        own=sums.own[there],
        squares=None if sums.squares is None else sums.squares[there],
    )
    depths, clusters, chains = sums.bins.shape[1], len(sums.chains), int(sums.chains.sum())
    if clusters < FEWEST_CLUSTERS or chains < FEWEST_CHAINS:
        return AttentionDrift(depths=depths, clusters=clusters, chains=chains)
    near = sums.bins[:, :, : depths - 1].sum(axis=2)
    shift = ratio_of(near - near[:, :1], sums.weight[:, None])
    before = np.cumsum(sums.bins[:, 0], axis=1)[:, : depths - 1]
    at_depth_1 = np.hstack([np.zeros((clusters, 1)), before])
    own = ratio_of(sums.own - at_depth_1, sums.weight[:, None])
    trend = ratio_of((near[:, -1] - near[:, 1])[:, None], sums.weight[:, None])
    by_depth = estimates(shift)
    total = sums.weight.sum()
    bins = sums.bins.sum(axis=0) / total
    others = np.stack([sums.sink.sum(axis=0), sums.null.sum(axis=0)], axis=1) / total
    every = np.hstack([bins, others])
    return AttentionDrift(
        depths=depths,
        source=Source.DISTANCES,
        clusters=clusters,
        chains=chains,
        from_depth=depths,
        shift=by_depth[-1],
        near_shift=by_depth,
        p=tuple(departure(shift).p.tolist()),
        first_step=by_depth[1],
        trend=estimates(trend)[0],
        apart=_between(near[:, -1] - near[:, 0], sums),
        own_excess=estimates(own),
        distances=ByDistance(
            edges=tuple(int(edge) for edge in edges),
            first=tuple(bins[0].tolist()),
            last=tuple(bins[-1].tolist()),
            sink=(float(others[0, 0]), float(others[-1, 0])),
            variation=tuple((0.5 * np.abs(every - every[0]).sum(axis=1)).tolist()),
        ),
    )


def _between(shift: Array, sums: DistanceSums) -> float | None:
    """Return the standard deviation of a mean shift between clusters, by an analysis of variance
    (Donner 1986), from its sums; None if no cluster has two chains."""
    n = sums.chains.astype(np.float64)
    mean = shift / sums.weight
    left = n.sum() - len(n)
    if sums.squares is None or not left > 0:
        return None
    within = float((n * (sums.squares / sums.weight - mean**2)).sum() / left)
    among = float((n * np.square(mean - np.average(mean, weights=n))).sum() / (len(n) - 1))
    typical = float((n.sum() - np.square(n).sum() / n.sum()) / (len(n) - 1))
    return float(np.sqrt(max(among - within, 0.0) / typical))


def drift_in_matched_rounds(sums: MatchedSums) -> AttentionDrift:
    """Return the own excess by depth, and its mean over the deeper half of the depths. Without
    enough chains only their number is returned."""
    depths = sums.weight.shape[1]
    first = max(2, -(-depths // 2))
    deep = slice(first - 1, depths)
    there = sums.weight[:, deep].sum(axis=1) > 0
    clusters, chains = int(there.sum()), int(sums.chains[:, deep].sum())
    if clusters < FEWEST_CLUSTERS or chains < FEWEST_MATCHED:
        return AttentionDrift(depths=depths, clusters=clusters, chains=chains)
    excess, weight = sums.excess[there], sums.weight[there]
    top, bottom = (column[:, deep].sum(axis=1, keepdims=True) for column in (excess, weight))
    ratio = ratio_of(excess, weight)
    each_units = zip(estimates(ratio), ratio.units, strict=True)
    return AttentionDrift(
        depths=depths,
        source=Source.MATCHED,
        clusters=clusters,
        chains=chains,
        from_depth=first,
        shift=estimates(ratio_of(top, bottom))[0],
        own_excess=tuple(estimate if units > 0 else None for estimate, units in each_units),
    )


def with_sink(drift: AttentionDrift, sums: SinkSums) -> AttentionDrift:
    """Return the drift with whether there is a sink at depth 1, and the share that it keeps.

    It has a sink if its mass is surely above SINK_FLOOR and above SINK_TIMES_EVEN times the even
    share, in all contexts or in long ones; it has none only if the mass is surely below SINK_FLOOR
    in long contexts.
    """
    far = sums.long
    long = None if far is None else _sink_mass(far.first, far.weight, far.chains)
    floor = _sink_mass(sums.first, sums.weight, sums.chains)
    beyond = _sink_mass(sums.first - SINK_TIMES_EVEN * sums.even, sums.weight, sums.chains)
    has = _low(long) > SINK_FLOOR or (_low(floor) > SINK_FLOOR and _low(beyond) > 0.0)
    none = long is not None and long.interval is not None and long.interval.high < SINK_FLOOR
    there = sums.weight > 0
    kept = ratio_of(sums.last[there, None], sums.first[there, None]) if has else None
    return replace(
        drift,
        sink_first=long,
        has_sink=True if has else False if none else None,
        sink_kept=estimates(kept)[0] if kept is not None else None,
    )


def _sink_mass(mass: Array, weight: Array, chains: Codes) -> Estimate | None:
    """Return the mean of a mass over chains; None with too few of them."""
    there = weight > 0
    if there.sum() < FEWEST_CLUSTERS or chains[there].sum() < FEWEST_CHAINS:
        return None
    return estimates(ratio_of(mass[there, None], weight[there, None]))[0]


def _low(estimate: Estimate | None) -> float:
    """Return the lower end of an estimate's interval; minus infinity without one."""
    spread = estimate.interval if estimate else None
    return -np.inf if spread is None else spread.low


def estimates(ratio: Ratio) -> tuple[Estimate, ...]:
    """Return each figure of a ratio with its interval."""
    spread = intervals(ratio) or (None,) * len(ratio.value)
    return tuple(
        Estimate(value=float(value), interval=interval)
        for value, interval in zip(ratio.value, spread, strict=True)
    )
