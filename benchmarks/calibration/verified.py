"""Drafts that are cut for their low confidence before they are verified, by how busy the engine is.

As vLLM's adaptive verification does, each step verifies the draft tokens of all its requests that
are most likely to be accepted, by the drafter's own confidence, and no others. The tokens that are
verified are then the likely ones: a drafter that did not change accepts fewer tokens in a round on
a busier server, and more of those that are verified. Neither is a change of the drafter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from benchmarks.calibration.depths import BETWEEN, FALLING, WITHIN, K, rounds_by_length, series
from benchmarks.calibration.table import Figures, Rate, Table, false, mean_of, power
from driftscope.analysis.compare import Comparison, accepts_less, comparison
from driftscope.analysis.figures.change_points import changes
from driftscope.analysis.figures.rounds import Rounds, Side, uncut_of
from driftscope.analysis.pairing import BY_DIGEST, Pairing

REQUESTS, ROUNDS, BATCH = 96, 30, 16
NOISE = 0.4
"""Standard deviation of the drafter's confidence about the true chance, in logits."""
QUIET, BUSY = 0.9, 0.65
"""Share of the draft tokens that a step verifies."""
WORSE = 0.6
"""Logits that a drafter loses in the twin of each world."""
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Shares of the draft tokens that two servers verify, or one before and after half of a run."""

    first: float
    second: float
    one_run: bool = False


WORLDS = {
    "whole drafts, and drafts cut on a busy server": World(first=1.0, second=BUSY),
    "a quiet server and a busy one": World(first=QUIET, second=BUSY),
    "a server that gets busy half-way": World(first=QUIET, second=BUSY, one_run=True),
}


def drawn(seed: int, prompts: int, verified: Matrix, lost: Matrix) -> Rounds:
    """Draw one run: `verified` is the share of draft tokens that a step verifies, and `lost` what
    the drafter lost, of each request, [requests]."""
    random, of_prompts = RandomState(seed), RandomState(10_000 + prompts)
    own = BETWEEN * of_prompts.standard_normal(REQUESTS)
    request = np.repeat(np.arange(REQUESTS), ROUNDS)
    shift = (own - lost)[request] + WITHIN * random.standard_normal(len(request))
    logit = FALLING + shift[:, None]
    hit = random.random_sample(logit.shape) < 1 / (1 + np.exp(-logit))
    sure = 1 / (1 + np.exp(-logit - NOISE * random.standard_normal(logit.shape)))
    length = _admitted(np.cumprod(sure, axis=1), request, verified)
    accepted = np.minimum(np.minimum.accumulate(hit, axis=1).sum(axis=1), length)
    some = length > 0
    rounds = rounds_by_length(request[some], length[some], accepted[some], REQUESTS)
    cut = np.bincount(length[(accepted == length) & (length < K)], minlength=K)
    return replace(rounds, uncut=uncut_of(rounds.at_risk.sum(axis=0), cut))


def _admitted(survival: Matrix, request: NDArray[np.int64], verified: Matrix) -> NDArray[np.int64]:
    """Return the number of leading tokens that each round verifies: those of a step of BATCH
    requests with the highest chance to survive, as many as its budget allows."""
    length = np.zeros(len(request), dtype=np.int64)
    for first in range(0, REQUESTS, BATCH):
        for step in range(ROUNDS):
            rows = np.arange(first, first + BATCH) * ROUNDS + step
            budget = round(float(verified[first : first + BATCH].mean()) * BATCH * K)
            flat = survival[rows].ravel()
            best = np.argsort(-flat, kind="stable")[:budget]
            length[rows] = np.bincount(best // K, minlength=BATCH)
    return length


def cut_drafts(world: World, seed: int) -> Figures:
    """Return whether a drafter that did not change is called worse, better or changed; whether one
    that lost WORSE logits is found; and the first if all depths with a token were compared."""
    runs = _one_run(world, seed) if world.one_run else _two_runs(world, seed)
    return dict(zip(("false", "found", "false_if_pooled"), runs, strict=True))


def _two_runs(world: World, seed: int) -> tuple[bool, ...]:
    """Compare runs of the same prompts, of which each verifies another share of its drafts."""
    a, b, worse = (
        drawn(3 * seed + n, seed, np.full(REQUESTS, share), np.full(REQUESTS, lost))
        for n, (share, lost) in enumerate(
            [(world.first, 0.0), (world.second, 0.0), (world.second, WORSE)]
        )
    )
    pooled = replace(a, uncut=None), replace(b, uncut=None)
    return _parts(a, b), _falls(a, worse), _parts(*pooled)


def _one_run(world: World, seed: int) -> tuple[bool, ...]:
    """Look for a change in a run whose engine gets busier half-way."""
    later = np.arange(REQUESTS) >= REQUESTS / 2
    verified = np.where(later, world.second, world.first)
    run = drawn(2 * seed, seed, verified, np.zeros(REQUESTS))
    worse = drawn(2 * seed + 1, seed, verified, np.where(later, WORSE, 0.0))
    return _moves(run), _moves(worse), _moves(replace(run, uncut=None))


def _side(rounds: Rounds) -> Side:
    return Side(rounds=rounds, labels=("all",) * len(rounds.rounds))


def _compared(a: Rounds, b: Rounds) -> Comparison:
    rows = np.arange(REQUESTS)
    pairing = Pairing(how=BY_DIGEST, first=rows, second=rows, alone=0)
    b = b.grouped_like(a)
    return comparison(_side(a), _side(b), ("a", "b"), pairing)


def _parts(a: Rounds, b: Rounds) -> bool:
    return bool(min(a.comparable_k, b.comparable_k)) and _compared(a, b).parts_from is not None


def _falls(a: Rounds, b: Rounds) -> bool:
    return bool(min(a.comparable_k, b.comparable_k)) and accepts_less(_compared(a, b))


def _moves(run: Rounds) -> bool:
    made = changes(series(run, run.comparable_tokens()[:, 0])) if run.comparable_k else None
    return made is not None and bool(made.points)


def _bounds(_: World, row: Figures, trials: int) -> Iterator[Rate]:
    yield false("an unchanged drafter called another", row["false"], trials)
    yield power("a drafter that lost acceptance", row["found"], trials, least=0.8)


CUT_DRAFTS = Table(
    name="cut_drafts",
    title="Drafts cut for low confidence: {trials} pairs of runs, and runs, of one drafter",
    worlds=WORLDS,
    figures=mean_of(cut_drafts),
    rates=_bounds,
    most_trials=200,
)
