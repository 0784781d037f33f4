"""Test conditional acceptance where rounds draft different numbers of tokens.

Wanted: the conditional rate of every depth lies within 2 points of the truth on average, and its
95 % interval contains the truth in at least 93 % of 400 runs, if the number of tokens does not
depend on what would be accepted. If a drafter stops where it is unsure, deep rounds are the easy
ones: then the rate over all rounds is one "as served", and holds for no chain in particular.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.intervals.cluster_intervals import rate_intervals

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
    return _rounds(request, drafted, accepted, world.requests)


def _chance(world: World, shift: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-(world.logits + shift[:, None]))))


def _rounds(
    request: NDArray[np.int64],
    drafted: NDArray[np.int64],
    accepted: NDArray[np.int64],
    requests: int,
) -> Rounds:
    sums = np.zeros((3, requests, K + 1), dtype=np.int64)
    np.add.at(sums[0], (request, accepted), 1)
    np.add.at(sums[1], (request, drafted), 1)
    np.add.at(sums[2], (request, drafted), accepted == drafted)
    return Rounds(
        request=np.arange(requests),
        rounds=sums[0].sum(axis=1),
        drafted=np.bincount(request, drafted, requests).astype(np.int64),
        histogram=sums[0],
        lengths=sums[1],
        exhausted=sums[2],
        mix=np.zeros(K + 1),
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
