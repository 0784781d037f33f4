"""Test means and trends of a stationary server that is read while it runs.

Requests follow each other on a fixed number of slots, and the recording ends in the middle of some.
Nothing changes over time. Acceptance goes with the length of the answers, rises along them, or
both. Wanted: a change over time in at most 6.8 % of 400 recordings (5 % and 1.64 standard errors),
and a mean acceptance length within 0.5 % of that of whole requests. For comparison: the same over
all rounds, and over finished requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from driftscope.analysis.figures.change_points import Series, changes
from driftscope.analysis.statistics.lifetimes import Lifetimes, selection_of

K = 4
FIRST = 0.6
"""Logit of acceptance at each depth, given the depth before."""
CERTAIN = 0.005
"""Largest bias of the mean acceptance length, as a share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Truth of one world: a server with `slots` places, each round of which takes one second."""

    slots: int = 64
    lasts_s: int = 600
    rounds: float = 40.0
    """Median number of rounds of an answer."""
    spread: float = 0.5
    """Standard deviation of the logarithm of that number."""
    ease: float = 0.0
    """Logit shift of acceptance for each standard deviation of that logarithm."""
    along: float = 0.0
    """Logit shift of acceptance for each e-fold of the rounds of an answer so far."""
    between: float = 0.5
    """Standard deviation of the requests' own logit shift."""


WORLDS = {
    "long answers are easy": World(ease=0.7),
    "acceptance rises along an answer": World(along=0.7),
    "both": World(ease=0.6, along=0.6),
    "neither": World(),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """Requests of one recording in order of their start, [requests] each."""

    lives: Lifetimes
    tokens: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Results in one world for one choice of requests."""

    world: str
    requests: str
    changed: float
    """Share of recordings in which a change over time was found."""
    bias: float
    """Mean acceptance length over that of whole requests, minus 1."""
    kept: float
    """Mean share of the rounds that is used."""


def recording(world: World, seed: int) -> Recording:
    """Draw one recording."""
    random = RandomState(seed)
    parts = [_slot(world, random) for _ in range(world.slots)]
    start, rounds, whole, tokens = (np.concatenate([part[n] for part in parts]) for n in range(4))
    order = np.argsort(start, kind="stable")
    lives = Lifetimes(
        start_s=start[order],
        last_s=(start + rounds)[order],
        end_s=np.full(len(start), float(world.lasts_s)),
        ended=(rounds == whole)[order],
        rounds=rounds[order].astype(np.int64),
    )
    return Recording(lives=lives, tokens=tokens[order])


def _slot(world: World, random: RandomState) -> tuple[NDArray[np.float64], ...]:
    """Return start, recorded rounds, all rounds and tokens of the requests of one slot."""
    most = int(4 * world.lasts_s / world.rounds) + 20
    ease = random.standard_normal(most)
    whole = np.maximum(np.rint(world.rounds * np.exp(world.spread * ease)), 1.0)
    begin = random.random_sample() + np.concatenate([[0.0], np.cumsum(whole)[:-1]])
    there = begin < world.lasts_s - 1
    ease, whole, begin = ease[there], whole[there], begin[there]
    seen = np.minimum(whole, np.floor(world.lasts_s - begin))
    shift = FIRST + world.ease * ease + world.between * random.standard_normal(len(ease))
    return begin, seen, whole, _tokens(world, shift, seen.astype(int), random)


def _tokens(
    world: World, shift: NDArray[np.float64], rounds: NDArray[np.int_], random: RandomState
) -> NDArray[np.float64]:
    of = np.repeat(np.arange(len(rounds)), rounds)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(rounds) - rounds, rounds)
    logit = shift[of] + world.along * (np.log1p(nth) - np.log(world.rounds))
    hit = random.random_sample((len(of), K)) < (1 / (1 + np.exp(-logit)))[:, None]
    accepted = np.minimum.accumulate(hit, axis=1).sum(axis=1)
    return np.bincount(of, 1.0 + accepted, len(rounds))


def true_length(world: World, requests: int = 200_000) -> float:
    """Return the acceptance length over whole requests, to about 0.1 %."""
    random = RandomState(1)
    ease = random.standard_normal(requests)
    rounds = np.maximum(np.rint(world.rounds * np.exp(world.spread * ease)), 1.0).astype(int)
    shift = FIRST + world.ease * ease + world.between * random.standard_normal(requests)
    parts = np.array_split(np.arange(requests), 50)
    tokens = sum(_tokens(world, shift[p], rounds[p], random).sum() for p in parts)
    return float(tokens / rounds.sum())


def choices(drawn: Recording) -> dict[str, NDArray[np.bool_]]:
    """Return the requests that each way of choosing uses."""
    return {
        "cohort": selection_of(drawn.lives).kept,
        "all": np.ones(len(drawn.tokens), dtype=np.bool_),
        "finished": drawn.lives.ended,
    }


def changed(drawn: Recording, mine: NDArray[np.bool_]) -> bool:
    """Whether a change over time is found among these requests."""
    n = int(mine.sum())
    series = Series(
        start_s=drawn.lives.start_s[mine],
        end_s=float(drawn.lives.end_s.max()),
        tokens=drawn.tokens[mine],
        rounds=drawn.lives.rounds[mine].astype(np.float64),
        labels=np.full(n, "all"),
    )
    made = changes(series)
    return made is not None and bool(made.points)


def unfinished(trials: int) -> Iterator[Unfinished]:
    """Yield the results in each world."""
    for name, world in WORLDS.items():
        true = true_length(world)
        rows: dict[str, list[tuple[bool, float, float]]] = {}
        for seed in range(trials):
            drawn = recording(world, seed)
            rounds = drawn.lives.rounds
            for choice, mine in choices(drawn).items():
                length = float(drawn.tokens[mine].sum() / rounds[mine].sum())
                share = float(rounds[mine].sum() / rounds.sum())
                rows.setdefault(choice, []).append((changed(drawn, mine), length, share))
        for choice, results in rows.items():
            found, lengths, shares = zip(*results, strict=True)
            yield Unfinished(
                world=name,
                requests=choice,
                changed=float(np.mean(found)),
                bias=float(np.mean(lengths)) / true - 1.0,
                kept=float(np.mean(shares)),
            )
