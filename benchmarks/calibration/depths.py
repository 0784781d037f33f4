"""Rates by depth where rounds draft or verify different numbers of tokens, and along the chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
from numpy.random import RandomState
from support.simulate import Truth
from support.simulate.sums import marginal_at_k, side

from benchmarks.calibration.estimates import inside
from benchmarks.calibration.runs import (
    Floats,
    Ints,
    accepted,
    chance,
    changed,
    compared,
    rounds_by_length,
)
from benchmarks.calibration.table import (
    COVERED,
    FOUND,
    MOSTLY,
    NEVER,
    Bound,
    Figures,
    at_worst,
    table,
)
from driftscope.analysis.compare import accepts_less
from driftscope.analysis.figures.results import chain_fall
from driftscope.analysis.figures.rounds import Rounds, Side, uncut_of
from driftscope.analysis.statistics.ratio import rate_intervals, ratio_of
from driftscope.findings.causes import FALLS_ABOVE, falls, is_even

K = 8
FALLING = np.array([1.4, 1.1, 0.85, 0.6, 0.45, 0.3, 0.2, 0.1])
"""Logit of acceptance at each depth."""
BETWEEN = 0.5
"""Standard deviation of the requests' own logit shift."""
WITHIN = 0.8
"""Standard deviation of the rounds' own logit shift, where the length follows it."""
HARD = 0.18
Lengths = Callable[[RandomState, Floats, int], Ints]
"""Function that draws the tokens drafted by rounds, [rounds], of which it may see the shift."""


def _full(_: RandomState, shift: Floats, k: int) -> Ints:
    return np.full(len(shift), k)


def _by_batch(random: RandomState, shift: Floats, k: int) -> Ints:
    """Return K by batch size: blocks of rounds with 2, 4 and 8 tokens."""
    return np.repeat(random.choice([2, 4, k], len(shift) // 10 + 1), 10)[: len(shift)]


def _random(random: RandomState, shift: Floats, k: int) -> Ints:
    return np.asarray(random.choice([2, 4, 6, k], len(shift)))


def _copied(random: RandomState, shift: Floats, k: int) -> Ints:
    """Return 1 .. 8 tokens, as many as the copied text has left."""
    return np.asarray(random.randint(1, k + 1, len(shift)))


def _confident(random: RandomState, shift: Floats, k: int) -> Ints:
    """Return more tokens the easier the round is."""
    sure = shift + 0.3 * random.standard_normal(len(shift))
    return np.clip(np.rint(4.5 + 3.0 * sure), 1, k).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthWorld:
    """Truth of a drafter whose rounds differ in difficulty, and in length."""

    rates: tuple[float, ...]
    """Acceptance at each depth of a round of usual difficulty."""
    lengths: Lengths = _full
    between: float = 0.0
    """Standard deviation of the requests' own logit shift."""
    within: float = 0.0
    """Standard deviation of the rounds' own logit shift."""
    hard: float = 0.0
    """Share of the rounds that accept HARD at every depth instead."""
    requests: int = 60
    rounds: int = 40

    @property
    def informative(self) -> bool:
        """Whether the number of tokens depends on what would be accepted."""
        return self.lengths is _confident

    @property
    def falls(self) -> float:
        """Fall of a usual round from its best depth to its worst deeper one."""
        rates = np.array(self.rates)
        return float((np.maximum.accumulate(rates) - rates).max())

    def chances(self, shift: Floats) -> Floats:
        """Return the chance of acceptance at each depth of rounds, [rounds, K]."""
        rates = np.array(self.rates)
        return np.asarray(chance(np.log(rates / (1 - rates)) + shift[:, None]))


def _mixed(lengths: Lengths, logits: Floats = FALLING) -> DepthWorld:
    rates = tuple(chance(logits).tolist())
    return DepthWorld(rates=rates, lengths=lengths, between=BETWEEN, within=WITHIN, requests=120)


WORLDS = {
    "K by batch size": _mixed(_by_batch),
    "K at random": _mixed(_random),
    # A drafter that copies text guesses deep tokens as well as the first.
    "n-gram, 1 to 8 tokens": _mixed(_copied, np.full(K, 1.4)),
    "length by confidence": _mixed(_confident),
}


def rounds_of_world(world: DepthWorld, seed: int) -> Rounds:
    """Draw one run."""
    random, k = RandomState(seed), len(world.rates)
    request = np.repeat(np.arange(world.requests), world.rounds)
    shift = world.between * random.standard_normal(world.requests)[request]
    shift += world.within * random.standard_normal(len(request))
    chances = world.chances(shift)
    chances[random.random_sample(len(request)) < world.hard] = HARD
    drafted = world.lengths(random, shift, k)
    tokens_accepted = np.minimum(accepted(random, chances), drafted)
    return rounds_by_length(request, drafted, tokens_accepted, world.requests, k)


@cache
def true_conditional(world: DepthWorld) -> Floats:
    """Return the conditional rates of chains that are all drafted to K, to about 0.1 points."""
    spread = np.hypot(world.between, world.within)
    shift = spread * RandomState(1).standard_normal(400_000)
    marginal = np.cumprod(world.chances(shift), axis=1).mean(axis=0)
    return np.asarray(marginal / np.append(1.0, marginal[:-1]))


@table(
    "risk_sets",
    "Conditional acceptance by risk sets, {trials} runs each, at the worst depth",
    worlds=WORLDS,
    summary=at_worst,
    wanted=lambda world: {} if world.informative else {"off": Bound(most=0.02), "covered": COVERED},
    formats={"off": ".3f", "off_counted": ".3f"},
)
def risk_sets(world: DepthWorld, seed: int) -> Figures:
    """Return by depth the distance of the estimate of one run to the truth; the same of the counts
    over all rounds accepted up to the depth before, as vLLM gives them; and whether the interval
    contains the truth."""
    true, rounds = true_conditional(world), rounds_of_world(world, seed)
    ratio, reached = rounds.conditional_ratio(), rounds.reached.sum(axis=0)
    return {
        "off": ratio.value - true,
        "off_counted": reached / np.append(len(rounds), reached[:-1]) - true,
        "covered": inside(rate_intervals(ratio), true),
    }


def _along(world: DepthWorld) -> dict[str, Bound]:
    if world is NEARLY_ALL:
        return {"falls": NEVER, "even": FOUND}
    if world.falls < FALLS_ABOVE.value:
        return {"falls": NEVER}
    hidden = world.within or world.hard  # survivors hide a part of a fall
    return {"even": NEVER} if hidden else {"even": NEVER, "falls": FOUND}


def _line(first: float, last: float, k: int = 8) -> tuple[float, ...]:
    return tuple(np.linspace(first, last, k).tolist())


NEARLY_ALL = DepthWorld(rates=(0.97,) * 4, requests=120)
CHAINS = {
    "falls from 80 to 61 %, equal rounds": DepthWorld(rates=_line(0.80, 0.61)),
    "falls from 80 to 61 %, requests differ": DepthWorld(rates=_line(0.80, 0.61), between=0.5),
    "even, requests of 10 rounds": DepthWorld(rates=(0.8,) * 8, between=0.5, rounds=10),
    "falls from 80 to 61 % at K = 4, rounds differ": DepthWorld(
        rates=_line(0.80, 0.61, 4), between=0.3, within=1.0
    ),
    "falls from 93 to 62 %, 30 % hard rounds": DepthWorld(
        rates=_line(0.93, 0.62), between=0.3, hard=0.3
    ),
    "even, equal rounds": DepthWorld(rates=(0.8,) * 8),
    "even, rounds differ": DepthWorld(rates=(0.8,) * 8, between=0.5, within=0.8),
    "even, requests differ": DepthWorld(rates=(0.8,) * 5, between=0.8),
    "even, 30 % hard rounds": DepthWorld(rates=(0.85,) * 8, hard=0.3),
    "even at 97 %": NEARLY_ALL,
    "falls by 6 points, as the best published": DepthWorld(
        rates=(0.86, 0.84, 0.82, 0.81, 0.80), between=0.3
    ),
}


@table(
    "along_chain",
    "Acceptance along the chain, {trials} runs each: share of answers",
    worlds=CHAINS,
    wanted=_along,
)
def along_chain(world: DepthWorld, seed: int) -> Figures:
    """Return what is said of acceptance along the chain of one run, of which only acceptance by
    depth is known, by the rules' own functions."""
    rounds = rounds_of_world(world, seed)
    conditional = rounds.conditional_ratio()
    run = SimpleNamespace(
        k=len(world.rates),
        mixed=False,
        fall=chain_fall(rounds.reached, rounds.at_risk, rounds.over_clusters),
        spread={"conditional": rate_intervals(conditional)},
        acceptance=SimpleNamespace(
            histogram=rounds.histogram.sum(axis=0).tolist(),
            conditional=conditional.value.tolist(),
        ),
    )
    answers = falls(run), is_even(run)
    return {"falls": answers[0], "even": answers[1], "cannot_tell": not any(answers)}


BY_BATCH = Truth(requests=96, rounds=25, batches=(1, 2, 3, 6), k_by_batch=((2, 7), (4, 4), (6, 2)))
BATCH_SHIFT = -0.3
"""Logit shift of acceptance for each doubling of the batch."""
SEVERAL: dict[str, tuple[Truth, int | None]] = {
    "K by batch size": (BY_BATCH, None),
    **{
        f"K by batch size, acceptance falls with it, rounds of K = {k}": (
            replace(BY_BATCH, batch=BATCH_SHIFT),
            k,
        )
        for k in (2, 4, 7)
    },
}
"""Truths, each with the K whose rounds are counted; None: all rounds are."""
BUSY = replace(BY_BATCH, batches=(*(1,) * 36, *(6,) * 12), requests=108)
"""A run in which load rises and K falls with it."""
MIXES = {
    "load rises, so K falls": BUSY,
    "the same, acceptance falls with the batch": replace(BUSY, batch=BATCH_SHIFT),
    "K set from 7 to 2 half-way": replace(
        BY_BATCH, batches=(3,), k_by_batch=(), k_from=((0.5, 2),)
    ),
}


@table(
    "several_k",
    "Runs of several K, {trials} each: share of intervals that hold the truth, at worst",
    worlds=SEVERAL,
    summary=at_worst,
    wanted=lambda _: {"worst": COVERED},
)
def several_k(world: tuple[Truth, int | None], seed: int) -> Figures:
    """Return whether the interval of each depth holds the truth, and that for rates as vLLM counts
    them; None if both are equal."""
    truth, k = world
    drawn = replace(truth, seed=seed, prompts_seed=seed)
    rounds = side(drawn, drafted=k).rounds
    true = drawn.marginal() if k is None else marginal_at_k(drawn, k)
    ratio = rounds.marginal_ratio().first(k or truth.k)
    of_all = np.broadcast_to(rounds.rounds[:, None] * 1.0, rounds.reached.shape)
    counted = ratio_of(rounds.reached.astype(np.float64), of_all)
    return {
        "worst": inside(rate_intervals(ratio), true),
        "counted": inside(rate_intervals(counted), true) if k is None else None,
    }


def _moves(rounds: Rounds) -> bool:
    return changed(rounds.comparable_tokens()[:, 0], rounds.rounds, several_k=True)


@table(
    "mix_changes",
    "A change over time where only the mix of K changes, {trials} runs each: share found",
    worlds=MIXES,
    wanted=lambda _: {"comparable": NEVER},
)
def mix_changes(truth: Truth, seed: int) -> Figures:
    """Return whether a change over time is found although only the mix of K changed: for lengths
    that can be compared, and for lengths as served."""
    rounds = side(replace(truth, seed=seed, prompts_seed=seed)).rounds
    served = rounds.rounds + rounds.accepted
    return {
        "comparable": _moves(rounds),
        "served": changed(served, rounds.rounds, several_k=True),
    }


REQUESTS, ROUNDS, BATCH = 96, 30, 16
NOISE = 0.4
"""Standard deviation of the drafter's confidence about the true chance, in logits."""
QUIET, BUSY_SHARE = 0.9, 0.65
WORSE = 0.6
"""Logits that a drafter loses in the twin of each world."""
CUTS = {
    "whole drafts, and drafts cut on a busy server": (1.0, BUSY_SHARE, False),
    "a quiet server and a busy one": (QUIET, BUSY_SHARE, False),
    "a server that gets busy half-way": (QUIET, BUSY_SHARE, True),
}
"""Shares of the draft tokens that two servers verify, or one before and after half of a run.

As vLLM's adaptive verification does, each step verifies the draft tokens of all its requests that
are most likely to be accepted, by the drafter's own confidence, and no others. A drafter that did
not change then accepts fewer tokens in a round on a busier server, and more of those that are
verified."""


def _cut(seed: int, prompts: int, verified: Floats, lost: Floats) -> Rounds:
    """Draw one run: `verified` is the share of draft tokens that a step verifies, and `lost` what
    the drafter lost, of each request, [requests]."""
    random, of_prompts = RandomState(seed), RandomState(10_000 + prompts)
    own = BETWEEN * of_prompts.standard_normal(REQUESTS)
    request = np.repeat(np.arange(REQUESTS), ROUNDS)
    shift = (own - lost)[request] + WITHIN * random.standard_normal(len(request))
    logit = FALLING + shift[:, None]
    tokens_accepted = accepted(random, chance(logit))
    sure = chance(logit + NOISE * random.standard_normal(logit.shape))
    length = _admitted(np.cumprod(sure, axis=1), request, verified)
    tokens_accepted = np.minimum(tokens_accepted, length)
    some = length > 0
    rounds = rounds_by_length(request[some], length[some], tokens_accepted[some], REQUESTS, K)
    cut = np.bincount(length[(tokens_accepted == length) & (length < K)], minlength=K)
    return replace(rounds, uncut=uncut_of(rounds.at_risk.sum(axis=0), cut))


def _admitted(survival: Floats, request: Ints, verified: Floats) -> Ints:
    """Return the number of leading tokens that each round verifies: those of a step of BATCH
    requests with the highest chance to survive, as many as its budget allows."""
    length = np.zeros(len(request), dtype=np.int64)
    for first in range(0, REQUESTS, BATCH):
        for step in range(ROUNDS):
            rows = np.arange(first, first + BATCH) * ROUNDS + step
            budget = round(float(verified[first : first + BATCH].mean()) * BATCH * K)
            best = np.argsort(-survival[rows].ravel(), kind="stable")[:budget]
            length[rows] = np.bincount(best // K, minlength=BATCH)
    return length


def _pooled(rounds: Rounds) -> Rounds:
    return replace(rounds, uncut=None)


def _runs_differ(a: Rounds, b: Rounds, *, less: bool = False) -> bool:
    """Return whether two runs of the same prompts differ, or the second accepts less."""
    if not min(a.comparable_k, b.comparable_k):
        return False
    sides = (Side(rounds=one, labels=("all",) * REQUESTS) for one in (a, b.grouped_like(a)))
    found = compared(*sides, paired=True)
    return accepts_less(found) if less else found.parts_from is not None


@table(
    "cut_drafts",
    "Drafts cut for low confidence: {trials} pairs of runs, and runs, of one drafter",
    worlds=CUTS,
    wanted=lambda _: {"false": NEVER, "found": MOSTLY},
    most_trials=200,
)
def cut_drafts(world: tuple[float, float, bool], seed: int) -> Figures:
    """Return whether a drafter that did not change is called worse, better or changed; whether one
    that lost WORSE logits is found; and the first if all depths with a token were compared."""
    first, second, one_run = world
    if one_run:
        later = np.arange(REQUESTS) >= REQUESTS / 2
        verified = np.where(later, second, first)
        run = _cut(2 * seed, seed, verified, np.zeros(REQUESTS))
        worse = _cut(2 * seed + 1, seed, verified, np.where(later, WORSE, 0.0))
        moves = [one.comparable_k > 0 and _moves(one) for one in (run, worse)]
        return {"false": moves[0], "found": moves[1], "false_if_pooled": _moves(_pooled(run))}
    a, b, worse = (
        _cut(3 * seed + n, seed, np.full(REQUESTS, share), np.full(REQUESTS, lost))
        for n, (share, lost) in enumerate([(first, 0.0), (second, 0.0), (second, WORSE)])
    )
    return {
        "false": _runs_differ(a, b),
        "found": _runs_differ(a, worse, less=True),
        "false_if_pooled": _runs_differ(_pooled(a), _pooled(b)),
    }
