"""How often attention is said to drift, in worlds in which it does, does not, or nearly does.

A chain's attention by distance is a mixture of recent places, by one of three kernels, and places
far away; requests differ in their level, sessions of requests too. In worlds without drift every
depth has the distribution of depth 1, so that the chain's own tokens get the more attention, the
more places they take. The pattern of arXiv 2605.09992 is simulated before and after its repair: a
drafter without norm (sink .46 to .08, recent places .14 to .31) and one with it (.11 to .10, .50 to
.53).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import RandomState

from benchmarks.calibration.table import Figures, Rate, Table, false, mean_of, power
from driftscope.analysis.statistics.drift import (
    MARGIN,
    SINK_FLOOR,
    SINK_LOST_BELOW,
    SINK_TIMES_EVEN,
    Answer,
    AttentionDrift,
    DistanceSums,
    LongSums,
    SinkSums,
    drift_by_distance,
    with_sink,
)
from driftscope.trace.records import edges_of

K = 8
PLACES = K - 1
"""Recent places: those that the chain takes at depth K."""
CONTEXT = 1000
"""Visible slots, of which even attention would give each its share."""
BETWEEN = 0.03
"""Standard deviation of a request's level, as a share of the attention."""
WITHIN = 0.05
"""Standard deviation of a chain's mass at each depth."""
MOVES = 0.03
"""Standard deviation, over requests, of how far attention moves by depth K."""
KERNELS = {
    "steep": 0.5 ** np.arange(PLACES),
    "even": np.ones(PLACES),
    "second place": np.array([0.2, *([1.0] * (PLACES - 1))]),
}
"""Weights of the recent places, nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A drafter and what was recorded of it."""

    recent: float = 0.3
    """Attention on recent places at depth 1."""
    shift: float = 0.0
    """Addition to it by depth K."""
    sink: tuple[float, float] = (0.0, 0.0)
    """Attention on the sink at depths 1 and K."""
    kernel: str = "steep"
    requests: int = 40
    chains: int = 8
    """Chains of each request."""
    sessions: int = 0
    """Number of sessions, whose requests share half of the variance; 0: every request is its
    own."""
    opposite: float = 0.0
    """Shift by depth K in half of the requests, and minus that in the others."""
    contexts: tuple[int, int] = (CONTEXT, CONTEXT)
    """Range of the visible slots, drawn for each request."""


NULLS = {
    f"no drift, {kernel} kernel, {recent:.0%} on recent places": World(recent=recent, kernel=kernel)
    for kernel in KERNELS
    for recent in (0.15, 0.3, 0.5)
}
PRE_NORM = World(recent=0.14, shift=0.17, sink=(0.46, 0.08))
POST_NORM = World(recent=0.5, shift=0.03, sink=(0.11, 0.10))
WORLDS = {
    **NULLS,
    "no drift, 8 sessions": World(sessions=8),
    "no drift, 10 requests of 5 chains": World(requests=10, chains=5),
    "shift at the margin": World(shift=MARGIN),
    "arXiv 2605.09992, without norm": PRE_NORM,
    "arXiv 2605.09992, without norm, 10 requests of 5 chains": replace(
        PRE_NORM, requests=10, chains=5
    ),
    "arXiv 2605.09992, with norm": POST_NORM,
    "half of the requests +14, half -14 points": World(opposite=0.14),
}
LONG = 2000
SINKS = {
    "a sink of 12 %, contexts of 64 to 300": World(sink=(0.12, 0.11), contexts=(64, 300)),
    "a sink of 9 %, contexts of 24 to 130": World(sink=(0.09, 0.08), contexts=(24, 130)),
    "a sink of 12 %, contexts of 300 to 2000": World(sink=(0.12, 0.11), contexts=(300, LONG)),
    "even attention, contexts of 64 to 200": World(sink=(0.03, 0.03), contexts=(64, 200)),
    "a sink of 1 %, contexts of 300 to 2000": World(sink=(0.01, 0.01), contexts=(300, LONG)),
}
"""Worlds of a drafter with a sink at depth 1, and of one without."""


def drift_of(world: World, seed: int) -> AttentionDrift:
    """Return the drift of one simulated recording; the cluster is the session or the request."""
    random = RandomState(seed)
    clusters = world.sessions or world.requests
    cluster = np.arange(world.requests) % clusters
    own = 1.0 if not world.sessions else np.sqrt(0.5)
    level = own * random.standard_normal(world.requests)
    moves = own * random.standard_normal(world.requests)
    if world.sessions:
        level = level + own * random.standard_normal(clusters)[cluster]
        moves = moves + own * random.standard_normal(clusters)[cluster]
    request = np.repeat(np.arange(world.requests), world.chains)
    along = np.arange(K) / (K - 1)
    near = world.recent + BETWEEN * level[request, None] + world.shift * along
    near = near + (MOVES * moves[request, None] + _apart(world)[request, None]) * along
    near = np.clip(near + WITHIN * random.standard_normal(near.shape), 0.0, 1.0)
    sink = np.linspace(*world.sink, K) * np.exp(0.1 * random.standard_normal(near.shape))
    near = np.minimum(near, 1.0 - sink)
    places = KERNELS[world.kernel] / KERNELS[world.kernel].sum()
    bins = np.zeros((len(request), K, len(edges_of(K))))
    bins[:, :, :PLACES] = near[:, :, None] * places
    bins[:, :, -1] = 1.0 - near - sink
    mine = np.cumsum(bins[:, :, :PLACES], axis=2)
    on_chain = np.stack([mine[:, d, d - 1] if d else np.zeros(len(request)) for d in range(K)], 1)
    found = drift_by_distance(_sums(cluster[request], bins, sink, on_chain), edges_of(K))
    context = random.randint(world.contexts[0], world.contexts[1] + 1, world.requests)
    return with_sink(found, _sink_sums(cluster[request], sink, context[request]))


def _apart(world: World) -> np.ndarray:
    return np.where(np.arange(world.requests) % 2, world.opposite, -world.opposite)


def _sums(
    cluster: np.ndarray, bins: np.ndarray, sink: np.ndarray, on_chain: np.ndarray
) -> DistanceSums:
    n = int(cluster.max()) + 1

    def by_cluster(values: np.ndarray) -> np.ndarray:
        out = np.zeros((n, *values.shape[1:]))
        np.add.at(out, cluster, values)
        return out

    count = np.bincount(cluster, minlength=n)
    return DistanceSums(
        chains=count,
        weight=count.astype(np.float64),
        bins=by_cluster(bins),
        sink=by_cluster(sink),
        null=np.zeros((n, K)),
        own=by_cluster(on_chain),
        squares=by_cluster(np.square((bins[:, -1, :PLACES] - bins[:, 0, :PLACES]).sum(axis=1))),
    )


def _sink_sums(cluster: np.ndarray, sink: np.ndarray, context: np.ndarray) -> SinkSums:
    count, n = np.bincount(cluster), int(cluster.max()) + 1
    even = 4.0 / context
    long = SINK_TIMES_EVEN * even <= SINK_FLOOR
    return SinkSums(
        chains=count,
        weight=count.astype(np.float64),
        first=np.bincount(cluster, sink[:, 0]),
        last=np.bincount(cluster, sink[:, -1]),
        even=np.bincount(cluster, even),
        long=LongSums(
            chains=np.bincount(cluster[long], minlength=n),
            weight=np.bincount(cluster[long], minlength=n).astype(np.float64),
            first=np.bincount(cluster[long], sink[long, 0], n),
        ),
    )


def truth_of(world: World) -> str:
    """Return the answer that is right: "margin" for a shift equal to the margin, or "drift of
    some", of which the mean shows nothing."""
    if world.shift == MARGIN:
        return "margin"
    if world.opposite > MARGIN:
        return "drift of some"
    lost = world.sink[1] < SINK_LOST_BELOW * world.sink[0]
    return "drift" if world.shift > MARGIN or lost else "no drift"


def drifts(world: World, seed: int) -> Figures:
    """Return the answer about one recording."""
    said = drift_of(world, seed).answer
    return {
        "drift": said is Answer.DRIFT,
        "no_drift": said is Answer.NO_DRIFT,
        "cannot_tell": said is Answer.CANNOT_TELL,
    }


def _answers(world: World, row: Figures, trials: int) -> Iterator[Rate]:
    truth = truth_of(world)
    if truth != "drift":
        yield false("drift", row["drift"], trials)
        if truth == "drift of some":
            yield false("no drift", row["no_drift"], trials)
    else:
        yield false("no drift", row["no_drift"], trials)
        yield power("drift", row["drift"], trials)


ATTENTION_DRIFT = Table(
    name="attention_drift",
    title="Attention drift, {trials} recordings each: share of answers",
    worlds=WORLDS,
    figures=mean_of(drifts),
    rates=_answers,
)


def sinks(world: World, seed: int) -> Figures:
    """Return whether the drafter of one recording is said to have a sink."""
    said = drift_of(world, seed).has_sink
    return {"has": said is True, "has_not": said is False, "cannot_tell": said is None}


def _sink_answers(world: World, row: Figures, trials: int) -> Iterator[Rate]:
    there = world.sink[0] > SINK_FLOOR
    wrong, right = (row["has_not"], row["has"]) if there else (row["has"], row["has_not"])
    yield false("wrong answer about the sink", wrong, trials)
    if max(world.contexts) == LONG:
        yield power("right answer in long contexts", right, trials)


ATTENTION_SINKS = Table(
    name="attention_sinks",
    title="Whether a drafter has an attention sink, {trials} recordings each: share of answers",
    worlds=SINKS,
    figures=mean_of(sinks),
    rates=_sink_answers,
)
