"""The drafter's internals: attention by depth, its relation to acceptance, and confidence.

Most worlds have nothing to find, and something that a naive test would find: chains take places
that attention likes anyway, hard prompts raise a measure and lower acceptance, traffic gets harder.
The pattern of arXiv 2605.09992 is simulated before and after its repair: a drafter without norm
(sink .46 to .08, recent places .14 to .31) and one with it (.11 to .10, .50 to .53).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import RandomState

from benchmarks.calibration.runs import accepted, chance
from benchmarks.calibration.table import (
    COVERED,
    COVERED_BY_FEW,
    FOUND,
    NEVER,
    Bound,
    Figures,
    holds,
    known,
    means,
    table,
)
from driftscope.analysis.figures.attention_drift import (
    MARGIN,
    SINK_FLOOR,
    SINK_LOST_BELOW,
    SINK_TIMES_EVEN,
    AttentionDrift,
    DistanceSums,
    DriftAnswer,
    SinkSums,
    drift_by_distance,
    with_sink,
)
from driftscope.analysis.figures.calibration import Scored, calibrations
from driftscope.analysis.statistics import strata as relation
from driftscope.analysis.statistics.strata import Rows, association
from driftscope.findings.rules_confidence import confidence_moves, confidence_off
from driftscope.trace.records import edges_of

DEPTHS = 8
PLACES = DEPTHS - 1
"""Recent places: those that the chain takes at the last depth."""
CONTEXT = 1000
"""Visible slots, of which even attention would give each its share."""
BETWEEN = 0.03
"""Standard deviation of a request's level, as a share of the attention."""
WITHIN = 0.05
"""Standard deviation of a chain's mass at each depth."""
MOVES = 0.03
"""Standard deviation, over requests, of how far attention moves by the last depth."""
KERNELS = {
    "steep": 0.5 ** np.arange(PLACES),
    "even": np.ones(PLACES),
    "second place": np.array([0.2, *([1.0] * (PLACES - 1))]),
}
"""Weights of the recent places, nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWorld:
    """A drafter and what was recorded of it. A chain's attention by distance is a mixture of recent
    places, by one of three kernels, and places far away."""

    recent: float = 0.3
    """Attention on recent places at depth 1."""
    shift: float = 0.0
    """Addition to it by the last depth."""
    sink: tuple[float, float] = (0.0, 0.0)
    """Attention on the sink at the first and last depth."""
    kernel: str = "steep"
    requests: int = 40
    chains: int = 8
    """Chains of each request."""
    sessions: int = 0
    """Number of sessions, whose requests share half of the variance; 0: every request is its
    own."""
    opposite: float = 0.0
    """Shift by the last depth in half of the requests, and minus that in the others."""
    contexts: tuple[int, int] = (CONTEXT, CONTEXT)
    """Range of the visible slots, drawn for each request."""

    @property
    def drifts(self) -> bool:
        """Whether attention moves by more than the margin, or the sink is lost."""
        lost = self.sink[1] < SINK_LOST_BELOW * self.sink[0]
        return self.shift > MARGIN or lost


NULLS = {
    f"no drift, {kernel} kernel, {recent:.0%} on recent places": AttentionWorld(
        recent=recent, kernel=kernel
    )
    for kernel in KERNELS
    for recent in (0.15, 0.3, 0.5)
}
PRE_NORM = AttentionWorld(recent=0.14, shift=0.17, sink=(0.46, 0.08))
POST_NORM = AttentionWorld(recent=0.5, shift=0.03, sink=(0.11, 0.10))
ATTENTIONS = {
    **NULLS,
    "no drift, 8 sessions": AttentionWorld(sessions=8),
    "no drift, 10 requests of 5 chains": AttentionWorld(requests=10, chains=5),
    "shift at the margin": AttentionWorld(shift=MARGIN),
    "arXiv 2605.09992, without norm": PRE_NORM,
    "arXiv 2605.09992, without norm, 10 requests of 5 chains": replace(
        PRE_NORM, requests=10, chains=5
    ),
    "arXiv 2605.09992, with norm": POST_NORM,
    "half of the requests +14, half -14 points": AttentionWorld(opposite=0.14),
}
LONG = 2000
SINKS = {
    "a sink of 12 %, contexts of 64 to 300": AttentionWorld(sink=(0.12, 0.11), contexts=(64, 300)),
    "a sink of 9 %, contexts of 24 to 130": AttentionWorld(sink=(0.09, 0.08), contexts=(24, 130)),
    "a sink of 12 %, contexts of 300 to 2000": AttentionWorld(
        sink=(0.12, 0.11), contexts=(300, LONG)
    ),
    "even attention, contexts of 64 to 200": AttentionWorld(sink=(0.03, 0.03), contexts=(64, 200)),
    "a sink of 1 %, contexts of 300 to 2000": AttentionWorld(
        sink=(0.01, 0.01), contexts=(300, LONG)
    ),
}
"""Worlds of a drafter with a sink at depth 1, and of one without."""


def drift_of(world: AttentionWorld, seed: int) -> AttentionDrift:
    """Return the drift of one simulated recording; the cluster is the session or the request. In
    worlds without drift every depth has the distribution of depth 1, so that the chain's own tokens
    get the more attention, the more places they take."""
    random = RandomState(seed)
    clusters = world.sessions or world.requests
    cluster = np.arange(world.requests) % clusters
    own = 1.0 if not world.sessions else np.sqrt(0.5)
    level = own * random.standard_normal(world.requests)
    moves = own * random.standard_normal(world.requests)
    if world.sessions:
        level = level + own * random.standard_normal(clusters)[cluster]
        moves = moves + own * random.standard_normal(clusters)[cluster]
    opposite = np.where(np.arange(world.requests) % 2, world.opposite, -world.opposite)
    request = np.repeat(np.arange(world.requests), world.chains)
    along = np.arange(DEPTHS) / (DEPTHS - 1)
    near = world.recent + BETWEEN * level[request, None] + world.shift * along
    near = near + (MOVES * moves + opposite)[request, None] * along
    near = np.clip(near + WITHIN * random.standard_normal(near.shape), 0.0, 1.0)
    sink = np.linspace(*world.sink, DEPTHS) * np.exp(0.1 * random.standard_normal(near.shape))
    near = np.minimum(near, 1.0 - sink)
    kernel = KERNELS[world.kernel] / KERNELS[world.kernel].sum()
    bins = np.zeros((len(request), DEPTHS, len(edges_of(DEPTHS))))
    bins[:, :, :PLACES] = near[:, :, None] * kernel
    bins[:, :, -1] = 1.0 - near - sink
    nearest = np.cumsum(bins[:, :, :PLACES], axis=2)
    on_chain = [nearest[:, d, d - 1] if d else np.zeros(len(request)) for d in range(DEPTHS)]
    context = random.randint(world.contexts[0], world.contexts[1] + 1, world.requests)[request]
    return _drift(cluster[request], bins, sink, np.stack(on_chain, 1), 4.0 / context)


def _drift(
    cluster: np.ndarray, bins: np.ndarray, sink: np.ndarray, own: np.ndarray, even: np.ndarray
) -> AttentionDrift:
    count = np.bincount(cluster)

    def by_cluster(values: np.ndarray) -> np.ndarray:
        out = np.zeros((len(count), *values.shape[1:]))
        np.add.at(out, cluster, values)
        return out

    sums = DistanceSums(
        chains=count,
        weight=count.astype(np.float64),
        bins=by_cluster(bins),
        sink=by_cluster(sink),
        null=np.zeros((len(count), DEPTHS)),
        own=by_cluster(own),
        squares=by_cluster(np.square((bins[:, -1, :PLACES] - bins[:, 0, :PLACES]).sum(axis=1))),
    )
    long = SINK_TIMES_EVEN * even <= SINK_FLOOR
    sinks = SinkSums(
        chains=count,
        weight=count.astype(np.float64),
        first=by_cluster(sink[:, 0]),
        last=by_cluster(sink[:, -1]),
        even=by_cluster(even),
        long_chains=by_cluster(long).astype(np.int64),
        long_weight=by_cluster(long),
        long_first=by_cluster(sink[:, 0] * long),
    )
    return with_sink(drift_by_distance(sums, edges_of(DEPTHS)), sinks)


def _answers(world: AttentionWorld) -> dict[str, Bound]:
    if world.drifts:
        return {"drift": FOUND, "no_drift": NEVER}
    # The mean shows nothing of shifts in both directions, and does not exclude them.
    return {"drift": NEVER, "no_drift": NEVER} if world.opposite else {"drift": NEVER}


@table(
    "attention_drift",
    "Attention drift, {trials} recordings each: share of answers",
    worlds=ATTENTIONS,
    wanted=_answers,
)
def drifts(world: AttentionWorld, seed: int) -> Figures:
    """Return the answer about one recording."""
    answer = drift_of(world, seed).answer
    return {
        "drift": answer is DriftAnswer.DRIFT,
        "no_drift": answer is DriftAnswer.NO_DRIFT,
        "cannot_tell": answer is DriftAnswer.CANNOT_TELL,
    }


def _sink_answers(world: AttentionWorld) -> dict[str, Bound]:
    right, wrong = ("has", "has_not") if world.sink[0] > SINK_FLOOR else ("has_not", "has")
    # Short contexts may leave it open.
    return {wrong: NEVER, right: FOUND} if max(world.contexts) == LONG else {wrong: NEVER}


@table(
    "attention_sinks",
    "Whether a drafter has an attention sink, {trials} recordings each: share of answers",
    worlds=SINKS,
    wanted=_sink_answers,
)
def sinks(world: AttentionWorld, seed: int) -> Figures:
    """Return whether the drafter of one recording is said to have a sink."""
    has_sink = drift_of(world, seed).has_sink
    return {"has": has_sink is True, "has_not": has_sink is False, "cannot_tell": has_sink is None}


FIRST, FALL = 1.2, 0.15
"""Logit of acceptance at depth 1, and its fall from depth to depth. A prompt's difficulty lowers it
and raises the measure as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationWorld:
    """How acceptance goes with a measure within requests; effects are on the logit of
    acceptance."""

    requests: int = 60
    rounds: int = 40
    effect: float = 0.0
    """Effect of the measure's own movement within a request, about one standard deviation."""
    trend: float = 0.0
    """Rise of the measure and fall of acceptance while the answer grows."""
    sessions: int = 0
    """Number of sessions that share their difficulty; 0: every request has its own."""
    shortest: int = 0
    """Fewest rounds of a request, if their number varies up to `rounds`; 0: all have as many."""


RELATIONS = {
    "prompts differ (Simpson)": RelationWorld(),
    "both move along the answer": RelationWorld(trend=0.5),
    "15 sessions of 4": RelationWorld(sessions=15),
    "12 requests": RelationWorld(requests=12),
    "an effect": RelationWorld(effect=-0.35),
    "a small effect": RelationWorld(requests=120, effect=0.15),
    "an effect, answers of 6 to 15 rounds": RelationWorld(
        requests=120, rounds=15, shortest=6, effect=0.35
    ),
}


def related_rows(world: RelationWorld, seed: int) -> tuple[Rows, np.ndarray]:
    """Return the rows of one run, a row for each depth that a round reached, and the true
    probability of each row's outcome."""
    random, k = RandomState(seed), 6
    n, rounds = world.requests, world.rounds
    session = np.arange(n) % world.sessions if world.sessions else np.arange(n)
    difficulty = random.standard_normal(session.max() + 1)[session]
    if world.sessions:
        difficulty = difficulty + 0.5 * random.standard_normal(n)
    progress = np.log1p(np.arange(rounds))
    movement = np.zeros((n, rounds))
    for at in range(1, rounds):
        movement[:, at] = 0.7 * movement[:, at - 1] + 0.5 * random.standard_normal(n)
    level = difficulty[:, None] + movement + world.trend * progress
    measure = level[:, :, None] + 0.3 * random.standard_normal((n, rounds, k))
    logit = FIRST - 0.8 * difficulty[:, None] - world.trend * progress
    chances = chance((logit + world.effect * movement)[:, :, None] - FALL * np.arange(k))
    hits = accepted(random, chances)
    lasts = random.randint(world.shortest or rounds, rounds + 1, n)
    exist = np.arange(rounds) < lasts[:, None]
    request, at, depth = np.nonzero((np.arange(k) <= hits[:, :, None]) & exist[:, :, None])
    rows = Rows(
        cluster=session[request],
        stratum=request * k + depth,
        y=(hits[request, at] > depth).astype(np.float64),
        x=measure[request, at, depth],
        covariates=progress[at][:, None],
    )
    return rows, chances[request, at, depth]


def _sizes(world: RelationWorld, made: Sequence[Figures]) -> Figures:
    row = means(world, made)
    quotient = row["estimate"] / row["true_size"] if world.effect else None
    return {**row, "over_true_size": quotient}


def _relation(world: RelationWorld) -> dict[str, Bound]:
    if not world.effect:
        return {"called": NEVER, "covered": COVERED}
    size = Bound(least=0.95, most=1.05, spread=1 / 3.1)
    return {"called": FOUND, "covered": COVERED, "over_true_size": size}


@table(
    "within_request",
    "Acceptance against the drafter's internals, {trials} runs each: share of answers",
    worlds=RELATIONS,
    summary=_sizes,
    wanted=_relation,
    times=5,
    formats={"estimate": ".4f", "true_size": ".4f", "over_true_size": ".3f"},
)
def related(world: RelationWorld, seed: int) -> Figures:
    """Return what is said of one run, and its estimate beside the true size."""
    rows, chances = related_rows(world, seed)
    answered = association(rows)
    # The truth is what the same fit gives for the probabilities behind the outcomes.
    fit = association(replace(rows, y=chances)) if world.effect else None
    true = fit.per_sd if fit else 0.0
    answer = answered.answer() if answered else relation.AssociationAnswer.CANNOT_TELL
    return {
        "called": answer in (relation.AssociationAnswer.LESS, relation.AssociationAnswer.MORE),
        "excluded": answer is relation.AssociationAnswer.NO,
        "undecided": answer is relation.AssociationAnswer.CANNOT_TELL,
        "covered": holds(answered.interval, true) if answered else None,
        "estimate": answered.per_sd if answered else None,
        "true_size": true,
    }


K = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceWorld:
    """A drafter whose confidence is the chance of acceptance, but for what is planted."""

    requests: int = 60
    temperatures: tuple[float, ...] = (1.0,) * K
    """Number by which the logit of the confidence is too large, by depth."""
    later: float = 1.0
    """Factor of these in the second half of the requests."""
    harder: float = 0.0
    """Fall of the logit of acceptance in the second half."""
    kinds: tuple[float, float] = (1.0, 1.0)
    """Factor of the temperatures in either kind of text."""
    mix: tuple[float, float] = (0.5, 0.5)
    """Share of the second kind in either half."""
    sessions: int = 0
    """Number of sessions that follow each other and share their difficulty."""


CONFIDENCES = {
    "calibrated": ConfidenceWorld(),
    "calibrated, 10 sessions": ConfidenceWorld(sessions=10),
    "calibrated, traffic gets harder": ConfidenceWorld(harder=0.8),
    "kinds are off, their mix changes": ConfidenceWorld(kinds=(1.0, 2.0), mix=(0.2, 0.8)),
    "too sure with depth": ConfidenceWorld(temperatures=(1.0, 1.3, 1.8, 2.4)),
    "not sure enough": ConfidenceWorld(temperatures=(0.6,) * K),
    "too sure from the middle on": ConfidenceWorld(requests=100, later=2.2),
}


def scored_rounds(world: ConfidenceWorld, seed: int) -> tuple[Scored, np.ndarray]:
    """Return rounds with their confidences, and the true chance of each token."""
    random = np.random.default_rng(seed)
    n, m = world.requests, 40
    session = np.arange(n) * world.sessions // n if world.sessions else np.arange(n)
    ease = random.normal(0.0, 0.7, int(session.max()) + 1)[session]
    request = np.repeat(np.arange(n), m)
    late = request >= n // 2
    kind = (random.random(n) < np.where(np.arange(n) >= n // 2, *world.mix[::-1]))[request]
    logit = 1.0 + ease[request, None] - 0.2 * np.arange(K) + random.normal(0, 1.0, (n * m, K))
    logit = logit - world.harder * late[:, None]
    heat = np.array(world.temperatures) * np.where(late, world.later, 1.0)[:, None]
    heat = heat * np.where(kind, world.kinds[1], world.kinds[0])[:, None]
    hit = random.random((n * m, K)) < chance(logit)
    rounds = Scored(
        request=request,
        cluster=session[request],
        accepted=np.minimum.accumulate(hit, axis=1).sum(axis=1),
        drawn=np.full(n * m, K),
        sure=chance(logit * heat),
        time_s=request + np.tile(np.arange(m) / m, n),
        kind=np.where(kind, "code", "prose"),
    )
    return rounds, chance(logit)


@cache
def _true_auroc(world: ConfidenceWorld) -> float:
    """Return the AUROC at depth 2 over very many requests."""
    areas = [calibrations(scored_rounds(world, 10_000 + n)[0]).by_depth[1].auroc for n in range(40)]
    return float(np.mean(known(areas)))


def _called(world: ConfidenceWorld) -> dict[str, Bound]:
    covered = COVERED_BY_FEW if world.sessions else COVERED
    wanted = {"covered": covered, "auroc_covered": covered}
    if world.later != 1.0:
        return {**wanted, "moves": FOUND}
    if world.kinds != (1.0, 1.0):
        return {**wanted, "moves": NEVER}
    planted = set(world.temperatures) != {1.0}
    return {**wanted, "moves": NEVER, "off": FOUND if planted else NEVER}


@table(
    "confidence",
    "Calibration of the drafter's confidence, {trials} runs each: shares",
    worlds=CONFIDENCES,
    wanted=_called,
    most_trials=400,
)
def confidence(world: ConfidenceWorld, seed: int) -> Figures:
    """Return whether the confidence of one run is called off, and said to have changed; and whether
    the intervals of temperature, bias and AUROC hold the truth."""
    rounds, chances = scored_rounds(world, seed)
    calibration = calibrations(rounds)
    run = SimpleNamespace(confidence=SimpleNamespace(calibration=calibration), side=None)
    case: Any = SimpleNamespace(run=run)
    inside, biases = [], []
    for at, true in zip(calibration.by_depth, world.temperatures, strict=True):
        reached = rounds.accepted >= at.depth - 1
        bias = float((rounds.sure - chances)[reached, at.depth - 1].mean())
        biases.append(holds(at.bias_interval, bias))
        inside.append(holds(at.temperature_interval, true))
    planted = world.later == 1.0 and world.kinds[0] == world.kinds[1]
    return {
        "off": confidence_off.rule(case) is not None,
        "moves": confidence_moves.rule(case) is not None,
        "covered": known(inside) if planted else None,
        "bias_covered": known(biases),
        "auroc_covered": holds(calibration.by_depth[1].auroc_interval, _true_auroc(world)),
    }
