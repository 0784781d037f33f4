"""Rates by depth where rounds draft different numbers of tokens, and where K varies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from support.simulate import Truth
from support.simulate.sums import marginal_at_k, side

from benchmarks.calibration.table import Rate, Table, covered, false, power
from driftscope.analysis.figures.change_points import Series, changes
from driftscope.analysis.figures.results import chain_fall
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import rate_intervals, ratio_of
from driftscope.findings.causes import FALLS_ABOVE, falls, is_even

K = 8
FLAT = np.full(K, 1.4)
"""Logit of 0.8: a drafter that copies text guesses deep tokens as well as the first."""
FALLING = np.array([1.4, 1.1, 0.85, 0.6, 0.45, 0.3, 0.2, 0.1])
BETWEEN = 0.5
"""Standard deviation of the requests' own logit shift."""
WITHIN = 0.8
"""Standard deviation of the rounds' own logit shift, where the length follows it."""
Lengths = Callable[[RandomState, NDArray[np.float64]], NDArray[np.int64]]
"""Function that draws the tokens drafted by rounds, [rounds], of which it may see the shift."""


def _by_batch(random: RandomState, shift: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return K by batch size: blocks of rounds with 2, 4 and 8 tokens."""
    batch = np.repeat(random.choice([2, 4, K], len(shift) // 10 + 1), 10)
    return np.asarray(batch[: len(shift)], dtype=np.int64)


def _random(random: RandomState, shift: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(random.choice([2, 4, 6, K], len(shift)), dtype=np.int64)


def _copied(random: RandomState, shift: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return 1 .. 8 tokens, as many as the copied text has left."""
    return np.asarray(random.randint(1, K + 1, len(shift)), dtype=np.int64)


def _confident(random: RandomState, shift: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return more tokens the easier the round is."""
    sure = shift + 0.3 * random.standard_normal(len(shift))
    return np.asarray(np.clip(np.rint(4.5 + 3.0 * sure), 1, K), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Truth of one world."""

    logits: NDArray[np.float64]
    lengths: Lengths
    requests: int = 120
    rounds: int = 40
    informative: bool = False
    """Whether the number of tokens depends on what would be accepted."""


WORLDS = {
    "K by batch size": World(logits=FALLING, lengths=_by_batch),
    "K at random": World(logits=FALLING, lengths=_random),
    "n-gram, 1 to 8 tokens": World(logits=FLAT, lengths=_copied),
    "length by confidence": World(logits=FALLING, lengths=_confident, informative=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskSets:
    """Results in one world, at the depth where they are worst."""

    world: str
    informative: bool
    off: float
    """Largest distance between the mean estimate of a depth and the truth."""
    off_counted: float
    """Error of the counts over all rounds accepted up to the depth before, as vLLM gives them."""
    covered: float
    """Smallest share of the runs in which the interval of a depth contains the truth."""


def rounds_of_world(world: World, seed: int) -> Rounds:
    """Draw one run."""
    random = RandomState(seed)
    request = np.repeat(np.arange(world.requests), world.rounds)
    own = WITHIN * random.standard_normal(len(request))
    shift = BETWEEN * random.standard_normal(world.requests)[request] + own
    drafted = world.lengths(random, shift)
    hit = random.random_sample((len(request), K)) < _chance(world, shift)
    accepted = np.minimum(np.minimum.accumulate(hit, axis=1).sum(axis=1), drafted)
    return rounds_by_length(request, drafted, accepted, world.requests)


def _chance(world: World, shift: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-(world.logits + shift[:, None]))))


def rounds_by_length(
    request: NDArray[np.int64],
    verified: NDArray[np.int64],
    accepted: NDArray[np.int64],
    requests: int,
    k: int = K,
) -> Rounds:
    """Return the sums of rounds, given by request, tokens verified and tokens accepted."""
    sums = np.zeros((3, requests, k + 1), dtype=np.int64)
    np.add.at(sums[0], (request, accepted), 1)
    np.add.at(sums[1], (request, verified), 1)
    np.add.at(sums[2], (request, verified), accepted == verified)
    return Rounds(
        request=np.arange(requests),
        rounds=sums[0].sum(axis=1),
        verified=np.bincount(request, verified, requests).astype(np.int64),
        histogram=sums[0],
        lengths=sums[1],
        exhausted=sums[2],
        mix=np.zeros(k + 1),
    )


def true_conditional(world: World) -> NDArray[np.float64]:
    """Return the conditional rates of chains that are all drafted to K, to about 0.1 points."""
    random = RandomState(1)
    spread = np.hypot(BETWEEN, WITHIN)
    reached = np.cumprod(_chance(world, spread * random.standard_normal(400_000)), axis=1)
    marginal = reached.mean(axis=0)
    return np.asarray(marginal / np.append(1.0, marginal[:-1]))


def risk_sets(trials: int) -> Iterator[RiskSets]:
    """Yield the results in each world."""
    for name, world in WORLDS.items():
        true = true_conditional(world)
        values, counted, hits = np.zeros(K), np.zeros(K), np.zeros(K)
        for seed in range(trials):
            rounds = rounds_of_world(world, seed)
            ratio = rounds.conditional_ratio()
            values += ratio.value / trials
            reached = rounds.reached.sum(axis=0)
            counted += reached / np.append(len(rounds), reached[:-1]) / trials
            ends = rate_intervals(ratio) or ()
            hits += [
                at is not None and at.low <= value <= at.high
                for at, value in zip(ends, true, strict=True)
            ]
        yield RiskSets(
            world=name,
            informative=world.informative,
            off=float(np.abs(values - true).max()),
            off_counted=float(np.abs(counted - true).max()),
            covered=float(hits.min() / trials),
        )


OFF_AT_MOST = 0.02
"""Largest error of a conditional rate."""


def _off_and_covered(row: RiskSets, trials: int) -> Iterator[Rate]:
    if not row.informative:
        yield Rate(name="error", value=row.off, most=OFF_AT_MOST)
        yield covered("coverage", row.covered, trials)


RISK_SETS = Table(
    name="risk_sets",
    title="Conditional acceptance by risk sets, {trials} runs each, at the worst depth",
    rows=risk_sets,
    rates=_off_and_covered,
    formats={"off": ".3f", "off_counted": ".3f"},
)


BY_BATCH = Truth(requests=96, rounds=25, batches=(1, 2, 3, 6), k_by_batch=((2, 7), (4, 4), (6, 2)))
BATCH_SHIFT = -0.3
"""Logit shift of acceptance for each doubling of the batch."""
BUSIER = (*(1,) * 36, *(6,) * 12)
"""Batch sizes of a run in which load rises and K falls with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCoverage:
    """Coverage of the interval at the depth where coverage is worst."""

    world: str
    rounds: str
    """Rounds that are counted: all, or those of one K."""
    depths: int
    worst: float
    counted: float | None
    """Coverage for rates as vLLM counts them; None if both are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixChanges:
    """Share of the runs in which a change over time was found although only the mix of K
    changed."""

    world: str
    comparable: float
    served: float
    """Share of runs in which a change is found for lengths as served."""


def coverages(trials: int) -> Iterator[DepthCoverage]:
    """Yield results for K by batch size, with equal acceptance at every batch size, then
    falling."""
    yield _coverage("K by batch size", BY_BATCH, None, trials)
    falling = replace(BY_BATCH, batch=BATCH_SHIFT)
    for k in (2, 4, 7):
        yield _coverage("K by batch size, acceptance falls with it", falling, k, trials)


def _coverage(world: str, truth: Truth, k: int | None, trials: int) -> DepthCoverage:
    depths = k or truth.k
    hits, counted = np.zeros(depths), np.zeros(depths)
    for trial in range(trials):
        drawn = replace(truth, seed=trial, prompts_seed=trial)
        rounds = side(drawn, drafted=k).rounds
        true = drawn.marginal() if k is None else marginal_at_k(drawn, k)
        hits += _hits(rate_intervals(rounds.marginal_ratio().first(depths)), true)
        counted += _hits(_as_counted(rounds), true)
    return DepthCoverage(
        world=world,
        rounds="all" if k is None else f"K = {k}",
        depths=depths,
        worst=float(hits.min() / trials),
        counted=float(counted.min() / trials) if k is None else None,
    )


def _as_counted(rounds: Rounds) -> tuple[Interval | None, ...] | None:
    of_all = np.broadcast_to(rounds.rounds[:, None].astype(np.float64), rounds.reached.shape)
    return rate_intervals(ratio_of(rounds.reached.astype(np.float64), of_all))


def _hits(found: tuple[Interval | None, ...] | None, true: np.ndarray) -> np.ndarray:
    pairs = zip(found or (), true, strict=False)
    return np.array([at is not None and at.low <= value <= at.high for at, value in pairs])


def mix_changes(trials: int) -> Iterator[MixChanges]:
    """Yield results for K that falls with rising load, with and without an effect of load, and by
    hand."""
    busier = replace(BY_BATCH, batches=BUSIER, requests=108)
    yield _changes("load rises, so K falls", busier, trials)
    yield _changes(
        "the same, acceptance falls with the batch", replace(busier, batch=BATCH_SHIFT), trials
    )
    by_hand = replace(BY_BATCH, batches=(3,), k_by_batch=(), k_from=((0.5, 2),))
    yield _changes("K set from 7 to 2 half-way", by_hand, trials)


def _changes(world: str, truth: Truth, trials: int) -> MixChanges:
    found = np.zeros(2)
    for trial in range(trials):
        rounds = side(replace(truth, seed=trial, prompts_seed=trial)).rounds
        for n, tokens in enumerate(
            (rounds.comparable_tokens()[:, 0], rounds.rounds + rounds.accepted)
        ):
            made = changes(series(rounds, np.asarray(tokens, dtype=np.float64)))
            found[n] += made is not None and bool(made.points)
    return MixChanges(world=world, comparable=found[0] / trials, served=found[1] / trials)


def series(rounds: Rounds, tokens: np.ndarray) -> Series:
    """Return the tokens of requests that began one after another."""
    n = len(rounds.rounds)
    return Series(
        start_s=np.arange(n, dtype=np.float64),
        end_s=float(n),
        tokens=tokens,
        rounds=rounds.rounds.astype(np.float64),
        labels=np.full(n, "all"),
        several_k=True,
    )


def _covered_at_worst(row: DepthCoverage, trials: int) -> Iterator[Rate]:
    yield covered("coverage at the worst depth", row.worst, trials)


def _mix_called(row: MixChanges, trials: int) -> Iterator[Rate]:
    yield false("change where only the mix of K changes", row.comparable, trials)


SEVERAL_K = Table(
    name="several_k",
    title="Runs of several K, {trials} each: share of intervals that hold the truth, at worst",
    rows=coverages,
    rates=_covered_at_worst,
)
MIX_CHANGES = Table(
    name="mix_changes",
    title="A change over time where only the mix of K changes, {trials} runs each: share found",
    rows=mix_changes,
    rates=_mix_called,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Truth of a drafter whose rounds differ in difficulty."""

    rates: tuple[float, ...]
    """Acceptance at each depth of a round of usual difficulty."""
    between: float = 0.0
    """Standard deviation of the requests' own logit shift."""
    within: float = 0.0
    """Standard deviation of the rounds' own logit shift."""
    hard: float = 0.0
    """Share of the rounds that accept HARD at every depth instead."""
    requests: int = 60
    rounds: int = 40

    @property
    def falls(self) -> float:
        """Fall of a usual round from its best depth to its worst deeper one."""
        rates = np.array(self.rates)
        return float((np.maximum.accumulate(rates) - rates).max())


HARD = 0.18
FALL_8 = tuple(np.linspace(0.80, 0.61, 8).tolist())
CHAINS = {
    "falls from 80 to 61 %, equal rounds": Chain(rates=FALL_8),
    "falls from 80 to 61 %, requests differ": Chain(rates=FALL_8, between=0.5),
    "even, requests of 10 rounds": Chain(rates=(0.8,) * 8, between=0.5, rounds=10),
    "falls from 80 to 61 % at K = 4, rounds differ": Chain(
        rates=tuple(np.linspace(0.80, 0.61, 4).tolist()), between=0.3, within=1.0
    ),
    "falls from 93 to 62 %, 30 % hard rounds": Chain(
        rates=tuple(np.linspace(0.93, 0.62, 8).tolist()), between=0.3, hard=0.3
    ),
    "even, equal rounds": Chain(rates=(0.8,) * 8),
    "even, rounds differ": Chain(rates=(0.8,) * 8, between=0.5, within=0.8),
    "even, requests differ": Chain(rates=(0.8,) * 5, between=0.8),
    "even, 30 % hard rounds": Chain(rates=(0.85,) * 8, hard=0.3),
    "even at 97 %": Chain(rates=(0.97,) * 4, requests=120),
    "falls by 6 points, as the best published": Chain(
        rates=(0.86, 0.84, 0.82, 0.81, 0.80), between=0.3
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlongChain:
    """Shares of the runs of one world by what is said of acceptance along the chain."""

    world: str
    true_fall: float
    """Fall of a usual round, in points; survivors may hide it."""
    survivors: bool
    """Whether rounds of a request differ, so that survivors hide a part of a fall."""
    falls: float
    even: float
    cannot_tell: float


def along_chain(trials: int) -> Iterator[AlongChain]:
    """Yield the answers in each world, by the rules' own functions."""
    for name, world in CHAINS.items():
        runs = [_chain_run(world, seed) for seed in range(trials)]
        said = [(falls(run), is_even(run)) for run in runs]
        share = [sum(answer) / trials for answer in zip(*said, strict=True)]
        yield AlongChain(
            world=name,
            true_fall=100 * world.falls,
            survivors=bool(world.within or world.hard),
            falls=share[0],
            even=share[1],
            cannot_tell=1.0 - share[0] - share[1],
        )


def _chain_run(world: Chain, seed: int) -> Any:
    """Draw a run of which only acceptance by depth is known."""
    random, depths = RandomState(seed), len(world.rates)
    request = np.repeat(np.arange(world.requests), world.rounds)
    rates = np.array(world.rates)
    shift = world.between * random.standard_normal(world.requests)[request]
    shift += world.within * random.standard_normal(len(request))
    chance = 1 / (1 + np.exp(-(np.log(rates / (1 - rates)) + shift[:, None])))
    chance[random.random_sample(len(request)) < world.hard] = HARD
    hit = random.random_sample(chance.shape) < chance
    accepted = np.minimum.accumulate(hit, axis=1).sum(axis=1)
    full = np.full(len(request), depths)
    rounds = rounds_by_length(request, full, accepted, world.requests, depths)
    conditional = rounds.conditional_ratio()
    return SimpleNamespace(
        k=depths,
        mixed=False,
        fall=chain_fall(rounds.reached, rounds.at_risk, rounds.over_clusters),
        spread={"conditional": rate_intervals(conditional)},
        acceptance=SimpleNamespace(
            histogram=np.bincount(accepted, minlength=depths + 1).tolist(),
            conditional=conditional.value.tolist(),
        ),
    )


def _along(row: AlongChain, trials: int) -> Iterator[Rate]:
    if row.true_fall < 100 * FALLS_ABOVE.value:
        yield false("called falling", row.falls, trials)
    else:
        yield false("called even", row.even, trials)
        if not row.survivors:
            yield power("called falling", row.falls, trials)
    if row.world == "even at 97 %":
        yield power("called even", row.even, trials)


ALONG_CHAIN = Table(
    name="along_chain",
    title="Acceptance along the chain, {trials} runs each: share of answers",
    rows=along_chain,
    rates=_along,
    formats={"true_fall": ".0f"},
)
