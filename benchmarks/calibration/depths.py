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

from benchmarks.calibration.table import Figures, Rate, Table, covered, false, mean_of, power
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


def risk_sets(world: World, trials: int) -> Figures:
    """Return the largest distance between the mean estimate of a depth and the truth; the same of
    the counts over all rounds accepted up to the depth before, as vLLM gives them; and the smallest
    share of the runs in which the interval of a depth contains the truth."""
    true = true_conditional(world)
    values, counted, hits = np.zeros(K), np.zeros(K), np.zeros(K)
    for seed in range(trials):
        rounds = rounds_of_world(world, seed)
        ratio = rounds.conditional_ratio()
        values += ratio.value / trials
        reached = rounds.reached.sum(axis=0)
        counted += reached / np.append(len(rounds), reached[:-1]) / trials
        hits += _hits(rate_intervals(ratio), true)
    return {
        "off": float(np.abs(values - true).max()),
        "off_counted": float(np.abs(counted - true).max()),
        "covered": float(hits.min() / trials),
    }


OFF_AT_MOST = 0.02
"""Largest error of a conditional rate."""


def _off_and_covered(world: World, row: Figures, trials: int) -> Iterator[Rate]:
    if not world.informative:
        yield Rate(name="error", value=row["off"], most=OFF_AT_MOST)
        yield covered("coverage", row["covered"], trials)


RISK_SETS = Table(
    name="risk_sets",
    title="Conditional acceptance by risk sets, {trials} runs each, at the worst depth",
    worlds=WORLDS,
    figures=risk_sets,
    rates=_off_and_covered,
    formats={"off": ".3f", "off_counted": ".3f"},
)


BY_BATCH = Truth(requests=96, rounds=25, batches=(1, 2, 3, 6), k_by_batch=((2, 7), (4, 4), (6, 2)))
BATCH_SHIFT = -0.3
"""Logit shift of acceptance for each doubling of the batch."""
BUSIER = (*(1,) * 36, *(6,) * 12)
"""Batch sizes of a run in which load rises and K falls with it."""


FALLING_WITH_BATCH = replace(BY_BATCH, batch=BATCH_SHIFT)
SEVERAL: dict[str, tuple[Truth, int | None]] = {
    "K by batch size": (BY_BATCH, None),
    **{
        f"K by batch size, acceptance falls with it, rounds of K = {k}": (FALLING_WITH_BATCH, k)
        for k in (2, 4, 7)
    },
}
"""Truths, each with the K whose rounds are counted; None: all rounds are."""
BUSY = replace(BY_BATCH, batches=BUSIER, requests=108)
MIXES = {
    "load rises, so K falls": BUSY,
    "the same, acceptance falls with the batch": replace(BUSY, batch=BATCH_SHIFT),
    "K set from 7 to 2 half-way": replace(
        BY_BATCH, batches=(3,), k_by_batch=(), k_from=((0.5, 2),)
    ),
}


def coverages(world: tuple[Truth, int | None], trials: int) -> Figures:
    """Return the coverage of the interval at the depth where it is worst, and that for rates as
    vLLM counts them; None if both are equal."""
    truth, k = world
    depths = k or truth.k
    hits, counted = np.zeros(depths), np.zeros(depths)
    for trial in range(trials):
        drawn = replace(truth, seed=trial, prompts_seed=trial)
        rounds = side(drawn, drafted=k).rounds
        true = drawn.marginal() if k is None else marginal_at_k(drawn, k)
        hits += _hits(rate_intervals(rounds.marginal_ratio().first(depths)), true)
        counted += _hits(_as_counted(rounds), true)
    return {
        "worst": float(hits.min() / trials),
        "counted": float(counted.min() / trials) if k is None else None,
    }


def _as_counted(rounds: Rounds) -> tuple[Interval | None, ...] | None:
    of_all = np.broadcast_to(rounds.rounds[:, None].astype(np.float64), rounds.reached.shape)
    return rate_intervals(ratio_of(rounds.reached.astype(np.float64), of_all))


def _hits(found: tuple[Interval | None, ...] | None, true: np.ndarray) -> np.ndarray:
    pairs = zip(found or (), true, strict=False)
    return np.array([at is not None and at.low <= value <= at.high for at, value in pairs])


def mix_changes(truth: Truth, seed: int) -> Figures:
    """Return whether a change over time is found although only the mix of K changed: for lengths
    that can be compared, and for lengths as served."""
    rounds = side(replace(truth, seed=seed, prompts_seed=seed)).rounds
    found = {}
    for name, tokens in (
        ("comparable", rounds.comparable_tokens()[:, 0]),
        ("served", rounds.rounds + rounds.accepted),
    ):
        made = changes(series(rounds, np.asarray(tokens, dtype=np.float64)))
        found[name] = made is not None and bool(made.points)
    return found


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


def _covered_at_worst(_: object, row: Figures, trials: int) -> Iterator[Rate]:
    yield covered("coverage at the worst depth", row["worst"], trials)


def _mix_called(_: Truth, row: Figures, trials: int) -> Iterator[Rate]:
    yield false("change where only the mix of K changes", row["comparable"], trials)


SEVERAL_K = Table(
    name="several_k",
    title="Runs of several K, {trials} each: share of intervals that hold the truth, at worst",
    worlds=SEVERAL,
    figures=coverages,
    rates=_covered_at_worst,
)
MIX_CHANGES = Table(
    name="mix_changes",
    title="A change over time where only the mix of K changes, {trials} runs each: share found",
    worlds=MIXES,
    figures=mean_of(mix_changes),
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
NEARLY_ALL = Chain(rates=(0.97,) * 4, requests=120)
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
    "even at 97 %": NEARLY_ALL,
    "falls by 6 points, as the best published": Chain(
        rates=(0.86, 0.84, 0.82, 0.81, 0.80), between=0.3
    ),
}


def along_chain(world: Chain, seed: int) -> Figures:
    """Return what is said of acceptance along the chain, by the rules' own functions."""
    run = _chain_run(world, seed)
    said = falls(run), is_even(run)
    return {"falls": said[0], "even": said[1], "cannot_tell": not any(said)}


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


def _along(world: Chain, row: Figures, trials: int) -> Iterator[Rate]:
    if world.falls < FALLS_ABOVE.value:
        yield false("called falling", row["falls"], trials)
    else:
        yield false("called even", row["even"], trials)
        if not (world.within or world.hard):  # survivors hide a part of a fall
            yield power("called falling", row["falls"], trials)
    if world is NEARLY_ALL:
        yield power("called even", row["even"], trials)


ALONG_CHAIN = Table(
    name="along_chain",
    title="Acceptance along the chain, {trials} runs each: share of answers",
    worlds=CHAINS,
    figures=mean_of(along_chain),
    rates=_along,
)
