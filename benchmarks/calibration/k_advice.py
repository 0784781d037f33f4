"""Test the advice on K in worlds whose step times are known.

Wanted: the bounds of a time that was not measured hold the truth in at least 95 % of the cases, and
so do the intervals of measured ones; a K that is commanded when the search for K ends serves at
most 5 % slower than the best in at least 95 % of the searches, and 1 % on average. Runs differ by 5
%, as busy machines do. One more table shows how far acceptance lengths from rounds cut anew are off
where difficulty is a slowly changing property of the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from benchmarks.calibration.table import ERRORS, Figures, Rate, Table, covered, mean_of, slack
from driftscope.analysis.advice import WORTH_SAYING, Choice, choose
from driftscope.analysis.cost import CostModel, evened, fit
from driftscope.analysis.figures.steps import StepCell
from driftscope.analysis.summary.computation import recut
from driftscope.analysis.time_per_token import (
    CUT_OFF_BY,
    ONE_TOKEN,
    RoundLength,
    Served,
    Times,
    times_at,
    times_over,
)

START = 8
LARGEST = 12
"""Largest K that the truth knows."""
MOST_RUNS = 12
RUN_EFFECT = 0.05
CELL_ERROR = 0.01
LENGTH_ERROR = 0.015
BATCHES = (1, 2, 4, 8, 16, 32)
PADDED_TO = 8
"""Number of tokens to a multiple of which the padded world rounds a step up."""
Verify = Callable[[int, int], float]
"""Milliseconds of verification by batch size and tokens."""


def _linear(batch: int, tokens: int) -> float:
    return 8.0 + 0.15 * batch + 0.08 * tokens


def _roofline(batch: int, tokens: int) -> float:
    return max(10.0, 0.18 * tokens) + 0.1 * batch


def _padded(_: int, tokens: int) -> float:
    return 7.0 + 0.15 * PADDED_TO * math.ceil(tokens / PADDED_TO)


def _by_batch(batch: int, tokens: int) -> float:
    """Return times in which attention over each request's context counts more than its tokens."""
    return 6.0 + 0.5 * batch + 0.05 * tokens


TRUTHS: Mapping[str, Verify] = {
    "linear": _linear,
    "roofline": _roofline,
    "padded": _padded,
    "batch effect": _by_batch,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """True times of one simulated server."""

    verify: Verify
    rates: NDArray[np.float64]
    """Conditional acceptance by depth, [LARGEST]."""
    depth_ms: float
    """Drafting time of each depth."""
    weights: Mapping[int, int]
    """Steps by batch size, as served."""

    def draft_ms(self, batch: int, k: int) -> float:
        """Return the drafting time of a step."""
        return (0.5 + k * self.depth_ms * (1 + 0.005 * batch)) if k else 0.0

    def length(self, k: int) -> float:
        """Return the tokens per round."""
        return 1.0 + float(np.cumprod(self.rates[:k]).sum())

    def tpot_s(self, batch: int, k: int) -> float:
        """Return the seconds per output token."""
        step_ms = self.verify(batch, batch * (k + 1)) + self.draft_ms(batch, k)
        return step_ms / 1000 / self.length(k)

    def mean_tpot_s(self, k: int) -> float:
        """Return the seconds per output token over the batch sizes as served."""
        whole = sum(n * batch for batch, n in self.weights.items())
        return sum(n * b * self.tpot_s(b, k) for b, n in self.weights.items()) / whole


def world_of(verify: Verify, random: RandomState) -> World:
    """Draw a server with this verification: drafter, its cost, and batch sizes."""
    first, keeps = random.uniform(0.6, 0.9), random.uniform(0.9, 1.0)
    return World(
        verify=verify,
        rates=np.asarray(first * keeps ** np.arange(LARGEST), dtype=np.float64),
        depth_ms=random.uniform(0.2, 1.2),
        weights={batch: int(random.randint(50, 2000)) for batch in BATCHES},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One recorded run of a world."""

    cells: tuple[StepCell, ...]
    lengths: tuple[RoundLength, ...]
    """Tokens per round for K = 0 .. the one that ran."""


def recorded(world: World, k: int, random: RandomState) -> Run:
    """Record a run: all of its times are off by one factor, and each a little by itself."""
    off = math.exp(RUN_EFFECT * random.standard_normal())
    cells = []
    for batch, steps in world.weights.items():
        noise = off * math.exp(CELL_ERROR * random.standard_normal())
        draft_s = world.draft_ms(batch, k) / 1000 * noise
        step_s = world.verify(batch, batch * (k + 1)) / 1000 * noise + draft_s
        cells.append(
            StepCell(
                k=k,
                batch=batch,
                steps=steps,
                step_s=step_s,
                step_error_s=CELL_ERROR * step_s,
                draft_s=draft_s,
                draft_error_s=CELL_ERROR * draft_s,
                recorded=False,
            )
        )
    error = math.exp(LENGTH_ERROR * random.standard_normal())
    lengths = [
        RoundLength(
            value=world.length(j) * error * (1.0 if j == k else 1 + random.uniform(-0.012, 0.0)),
            error=LENGTH_ERROR,
            bias=0.0 if j == k else CUT_OFF_BY,
        )
        for j in range(1, k + 1)
    ]
    return Run(cells=tuple(cells), lengths=(ONE_TOKEN, *lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """State of the search after some runs."""

    model: CostModel
    lengths: tuple[RoundLength, ...]
    times: Times
    choice: Choice


def known_from(runs: Mapping[int, Run], world: World) -> State:
    """Return what the runs by K tell; the first one is advised."""
    model = fit([run.cells for run in runs.values()])
    assert model is not None
    largest = max(runs)
    lengths = tuple(
        runs[min(deep for deep in runs if deep >= k)].lengths[k] for k in range(largest + 1)
    )
    served = Served(k=next(iter(runs)))
    times = times_over(model, lengths, served)
    growth = float(np.prod(world.rates[:largest])) / world.length(largest) + CUT_OFF_BY
    order = times_over(evened(model), lengths, served)
    choice = choose(times, order, model.measured_k, ran=served.k, growth=growth)
    return State(model=model, lengths=lengths, times=times, choice=choice)


def searched(world: World, random: RandomState) -> Iterator[tuple[Mapping[int, Run], State]]:
    """Yield the runs and what they tell after each run, until the choice is settled."""
    runs = {START: recorded(world, START, random)}
    while True:
        state = known_from(runs, world)
        yield runs, state
        following = state.choice.next
        if following is None or len(runs) == MOST_RUNS or following.k > LARGEST:
            return
        runs = {**runs, following.k: recorded(world, following.k, random)}


def advised(verify: Verify, seed: int) -> Figures:
    """Return the results of one search.

    held: the unmeasured times, by batch size and K, between their bounds; held_measured: the
    measured ones inside their intervals; runs: their number, the first included; commanded: whether
    it ends with a command; regret: how much slower than the best K the commanded one serves, and
    regret_kept whether that is at most WORTH_SAYING; final_regret: that of the K that was chosen,
    commanded or not; early: whether the first run alone gives a command.
    """
    random = RandomState(seed)
    world = world_of(verify, random)
    best = min(world.mean_tpot_s(k) for k in range(LARGEST + 1))
    held: list[bool] = []
    measured: list[bool] = []
    early = False
    for runs, state in searched(world, random):
        early = early or (len(runs) == 1 and _commanded(state.choice))
        inside, inside_measured = _inside(world, state)
        held += inside
        measured += inside_measured
    chosen = state.choice.k
    final = world.mean_tpot_s(START if chosen is None else chosen) / best - 1.0
    commanded = _commanded(state.choice)
    return {
        "held": held,
        "held_measured": measured,
        "runs": len(runs),
        "commanded": commanded,
        "regret_kept": final <= WORTH_SAYING if commanded else None,
        "regret": final if commanded else None,
        "final_regret": final,
        "early": early,
    }


def _commanded(choice: Choice) -> bool:
    gain = choice.gain
    return bool(
        choice.k != START and gain and gain.value >= WORTH_SAYING and gain.surely_above(0.0)
    )


def _inside(world: World, state: State) -> tuple[list[bool], list[bool]]:
    unmeasured: list[bool] = []
    measured: list[bool] = []
    for batch in state.model.batches:
        times = times_at(state.model, state.lengths, Served(k=START), batch)
        for k, span in enumerate(times.by_k):
            holds = span.low <= world.tpot_s(batch, k) <= span.high
            (measured if state.model.cell(batch, k) else unmeasured).append(holds)
    return unmeasured, measured


CORRELATIONS = {f"correlation {value:g}": value for value in (0.8, 0.9, 0.95, 0.98)}
"""Correlation of the difficulty of one token with that of the next."""
REQUESTS, TOKENS = 120, 400


def matches(random: RandomState, correlation: float) -> NDArray[np.bool_]:
    """Draw whether the drafter guesses each token, [REQUESTS, TOKENS]: easy and hard stretches."""
    state = random.standard_normal(REQUESTS)
    hits = np.empty((REQUESTS, TOKENS), dtype=np.bool_)
    for at in range(TOKENS):
        new = random.standard_normal(REQUESTS)
        state = correlation * state + math.sqrt(1 - correlation**2) * new
        hits[:, at] = random.random_sample(REQUESTS) < 1 / (1 + np.exp(-(0.8 + 1.6 * state)))
    return hits


def rounds_of(hits: NDArray[np.bool_], k: int) -> list[int]:
    """Return the tokens accepted in each round of K = `k` over one request."""
    accepted, at = [], 0
    while at + k < len(hits):
        miss = np.flatnonzero(~hits[at : at + k])
        accepted.append(int(miss[0]) if len(miss) else k)
        at += accepted[-1] + 1
    return accepted


def lengths_anew(requests: Sequence[Sequence[int]], k: int) -> list[float]:
    """Return acceptance lengths for K = 1 .. `k` from the rounds of requests at K = `k`."""
    runs = []
    for request, rounds in enumerate(requests):
        left = 0
        for accepted in rounds:
            left += accepted + (accepted == k)
            if accepted < k:
                runs.append((request, left, 1))
                left = 0
        if left:
            runs.append((request, left, 0))
    cluster, length, missed = (np.array(column) for column in zip(*runs, strict=True))
    return [
        depth.mean_length for depth in recut(cluster, length, missed, np.ones_like(length), k=k)
    ]


def cut_anew(correlation: float, trials: int) -> Figures:
    """Return the largest relative errors of acceptance lengths at K = 1 .. START - 1: of rounds cut
    anew, mean over the runs, and of chains cut off."""
    anew, cut_off = np.zeros(START - 1), np.zeros(START - 1)
    for seed in range(trials):
        hits = matches(RandomState(seed), correlation)
        rounds = [rounds_of(hit, START) for hit in hits]
        true = _lengths(hits)
        counts = np.bincount(np.concatenate(rounds), minlength=START + 1)
        reached = counts[::-1].cumsum()[::-1][1:START] / counts.sum()
        anew += (np.array(lengths_anew(rounds, START)[: START - 1]) / true - 1) / trials
        cut_off += ((1 + reached.cumsum()) / true - 1) / trials
    return {"anew": float(np.abs(anew).max()), "cut_off": float(np.abs(cut_off).max())}


def _lengths(hits: NDArray[np.bool_]) -> NDArray[np.float64]:
    served = [np.concatenate([rounds_of(hit, k) for hit in hits]) for k in range(1, START)]
    return np.array([1 + float(np.mean(tokens)) for tokens in served])


HELD_AT_LEAST = 0.95
"""Share of the times that their bounds hold, and of the commanded K that serve at most 5 % slower
than the best."""
REGRET_AT_MOST = 0.01
"""Mean of how much slower than the best a commanded K serves."""
REGRET_SPREAD = 0.02
"""Standard deviation of that regret, about which fewer trials may be off."""
LENGTH_OFF = 0.02
"""Largest relative error of an acceptance length from rounds cut anew."""


def _advice(_: Verify, row: Figures, trials: int) -> Iterator[Rate]:
    commands = max(round(row["commanded"] * trials), 1)
    least = HELD_AT_LEAST - slack(HELD_AT_LEAST, commands)
    more = ERRORS * REGRET_SPREAD / math.sqrt(commands)
    yield Rate(name="bounds hold", value=row["held"], least=HELD_AT_LEAST)
    yield covered("measured times covered", row["held_measured"], trials)
    yield Rate(name="commands within 5 %", value=row["regret_kept"], least=least)
    yield Rate(name="mean regret of commands", value=row["regret"], most=REGRET_AT_MOST + more)
    yield Rate(name="commands from one run", value=row["early"], most=0.0)


def _lengths_off(_: float, row: Figures, __: int) -> Iterator[Rate]:
    yield Rate(name="error of lengths cut anew", value=row["anew"], most=LENGTH_OFF)


K_ADVICE = Table(
    name="k_advice",
    title="Advice on K, {trials} searches each, from K = 8 on; runs differ by 5 %",
    worlds=TRUTHS,
    figures=mean_of(advised),
    rates=_advice,
    formats={"runs": ".1f", "regret": ".2%", "final_regret": ".2%"},
)
CUT_ANEW = Table(
    name="cut_anew",
    title="Acceptance length at a smaller K: largest relative error of the mean",
    worlds=CORRELATIONS,
    figures=cut_anew,
    rates=_lengths_off,
    most_trials=40,
)
