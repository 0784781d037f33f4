"""Advice on K and on confidence thresholds, on simulated servers whose times are known.

Wanted: the bounds of a time that was not measured hold the truth in at least 95 % of the cases, and
so do the intervals of measured ones; a K that is commanded when the search for K ends serves at
most 5 % slower than the best in at least 95 % of the searches, and 1 % on average. Runs differ by 5
%, as busy machines do. For thresholds the same text is served with each, which gives the truth: a
token is easy or hard, and neighbours are alike; the drafter guesses it, or not, whatever depth it
drafts it at, except for what depth costs; its confidence is its chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
from numpy.random import RandomState

from benchmarks.calibration.runs import Floats, Ints, chance
from benchmarks.calibration.table import COVERED, Bound, Figures, holds, table, within
from driftscope.analysis.advice import WORTH_SAYING, Choice, choose
from driftscope.analysis.cost import CostModel, StepCell, evened, fit
from driftscope.analysis.figures.calibration import Scored, calibrations
from driftscope.analysis.time_per_token import (
    CUT_OFF_BY,
    ONE_TOKEN,
    ORACLE,
    Policy,
    RecordedK,
    RoundLength,
    ServedK,
    policies,
    times_at,
    times_over,
)

START, K = 8, 5
"""K from which the search starts, and that of drafts which thresholds cut."""
REQUESTS, TOKENS = 60, 200
LARGEST = 12
"""Largest K that the truth knows."""
MOST_RUNS = 12
RUN_EFFECT = 0.05
CELL_ERROR = 0.01
LENGTH_ERROR = 0.015
BATCHES = (1, 2, 4, 8, 16, 32)
Verify = Callable[[int, float], float]
"""Milliseconds of verification by batch size and tokens."""
TRUTHS: Mapping[str, Verify] = {
    "linear": lambda batch, tokens: 8.0 + 0.15 * batch + 0.08 * tokens,
    "roofline": lambda batch, tokens: max(10.0, 0.18 * tokens) + 0.1 * batch,
    # A step is rounded up to a multiple of 8 tokens.
    "padded": lambda _, tokens: 7.0 + 0.15 * 8 * math.ceil(tokens / 8),
    # Attention over each request's context counts more than its tokens.
    "batch effect": lambda batch, tokens: 6.0 + 0.5 * batch + 0.05 * tokens,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceWorld:
    """True times of one simulated server."""

    verify: Verify
    rates: Floats
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


def world_of(verify: Verify, random: RandomState) -> AdviceWorld:
    """Draw a server with this verification: drafter, its cost, and batch sizes."""
    first, keeps = random.uniform(0.6, 0.9), random.uniform(0.9, 1.0)
    return AdviceWorld(
        verify=verify,
        rates=np.asarray(first * keeps ** np.arange(LARGEST), dtype=np.float64),
        depth_ms=random.uniform(0.2, 1.2),
        weights={batch: int(random.randint(50, 2000)) for batch in BATCHES},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """One recorded run of a world."""

    cells: tuple[StepCell, ...]
    lengths: tuple[RoundLength, ...]
    """Tokens per round for K = 0 .. the one that ran."""


def recorded(world: AdviceWorld, k: int, random: RandomState) -> SimulatedRun:
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
    return SimulatedRun(cells=tuple(cells), lengths=(ONE_TOKEN, *lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """State of the search after some runs."""

    model: CostModel
    lengths: tuple[RoundLength, ...]
    choice: Choice


def known_from(runs: Mapping[int, SimulatedRun], world: AdviceWorld) -> SearchState:
    """Return what the runs by K tell; the first one is advised."""
    model = fit([run.cells for run in runs.values()])
    assert model is not None
    largest = max(runs)
    lengths = tuple(
        runs[min(deep for deep in runs if deep >= k)].lengths[k] for k in range(largest + 1)
    )
    served = ServedK(k=next(iter(runs)))
    times = times_over(model, lengths, served)
    growth = float(np.prod(world.rates[:largest])) / world.length(largest) + CUT_OFF_BY
    order = times_over(evened(model), lengths, served)
    choice = choose(times, order, model.measured_k, ran=served.k, growth=growth)
    return SearchState(model=model, lengths=lengths, choice=choice)


def searched(world: AdviceWorld, random: RandomState) -> Iterator[SearchState]:
    """Yield what the runs tell after each of them, until the choice is settled."""
    runs = {START: recorded(world, START, random)}
    while True:
        state = known_from(runs, world)
        yield state
        following = state.choice.next
        if following is None or len(runs) == MOST_RUNS or following.k > LARGEST:
            return
        runs = {**runs, following.k: recorded(world, following.k, random)}


def _commanded(choice: Choice) -> bool:
    gain = choice.gain
    return bool(
        choice.k != START and gain and gain.value >= WORTH_SAYING and gain.surely_above(0.0)
    )


@table(
    "k_advice",
    "Advice on K, {trials} searches each, from K = 8 on; runs differ by 5 %",
    worlds=TRUTHS,
    wanted=lambda _: {
        "held": Bound(least=0.95),
        "held_measured": COVERED,
        "regret_kept": Bound(least=0.95, spread=math.sqrt(0.95 * 0.05), per="commanded"),
        "regret": Bound(most=0.01, spread=0.02, per="commanded"),
        "early": Bound(most=0.0),
    },
    formats={"runs": ".1f", "regret": ".2%", "final_regret": ".2%"},
)
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
    held: dict[bool, list[bool]] = {False: [], True: []}
    states = list(searched(world, random))
    for state in states:
        for batch in state.model.batches:
            times = times_at(state.model, state.lengths, ServedK(k=START), batch)
            for k, span in enumerate(times.by_k):
                measured = state.model.cell(batch, k) is not None
                held[measured].append(span.low <= world.tpot_s(batch, k) <= span.high)
    choice = states[-1].choice
    final = world.mean_tpot_s(START if choice.k is None else choice.k) / best - 1.0
    commanded = _commanded(choice)
    return {
        "held": held[False],
        "held_measured": held[True],
        "runs": len(states),
        "commanded": commanded,
        "regret_kept": final <= WORTH_SAYING if commanded else None,
        "regret": final if commanded else None,
        "final_regret": final,
        "early": _commanded(states[0].choice),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedText:
    """Logit and luck of each token, [requests, tokens]; a depth lowers the logit."""

    logit: Floats
    luck: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRounds:
    """Rounds as served, in order of the requests: arrays of [rounds] and [rounds, K]."""

    request: Ints
    accepted: Ints
    verified: Ints
    sure: Floats


def simulated_text(random: RandomState) -> SimulatedText:
    """Return text with easy and hard stretches."""
    state = random.standard_normal(REQUESTS)
    logit = np.empty((REQUESTS, TOKENS + K + 1))
    for at in range(logit.shape[1]):
        state = 0.7 * state + math.sqrt(1 - 0.49) * random.standard_normal(REQUESTS)
        logit[:, at] = 0.8 + 1.6 * state
    return SimulatedText(logit=logit, luck=random.random_sample(logit.shape))


def served(text: SimulatedText, threshold: float) -> SimulatedRounds:
    """Serve the text with drafts verified up to a confidence below the threshold."""
    every, depth = np.arange(REQUESTS), np.arange(K)
    at = np.zeros(len(every), dtype=np.int64)
    parts: list[tuple[np.ndarray, ...]] = []
    while (going := at < TOKENS).any():
        who = every[going]
        places = at[going][:, None] + depth
        sure = chance(text.logit[who[:, None], places] - 0.15 * depth)
        hit = text.luck[who[:, None], places] < sure
        verified = np.minimum.accumulate(sure >= threshold, axis=1).sum(axis=1)
        accepted = np.minimum(np.minimum.accumulate(hit, axis=1).sum(axis=1), verified)
        parts.append((who, accepted, verified, sure))
        at[going] += accepted + 1
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    request, accepted, verified, sure = (column[order] for column in columns)
    return SimulatedRounds(request=request, accepted=accepted, verified=verified, sure=sure)


ASKED = (0.3, 0.5, 0.7)
APART = 0.02
"""Difference of speed from which two thresholds have an order."""
AS_SERVED = {1: 400, 4: 400, 16: 400, 64: 400}
"""Steps by batch size."""


def recorded_on(rounds: SimulatedRounds) -> RecordedK:
    """Return what is known of rounds that verified all K tokens."""
    scored = Scored(
        request=rounds.request,
        cluster=rounds.request,
        accepted=rounds.accepted,
        drawn=rounds.verified,
        sure=rounds.sure,
        time_s=np.arange(len(rounds.request), dtype=np.float64),
    )
    value = 1.0 + float(rounds.accepted.mean())
    by_request = np.bincount(rounds.request, 1.0 + rounds.accepted) / np.bincount(rounds.request)
    error = float(by_request.std() / math.sqrt(len(by_request)) / value)
    return RecordedK(
        k=K,
        length=RoundLength(value=value, error=error),
        trimmed=calibrations(scored).trimmed,
        tokens_per_s=1000.0,
    )


def true_gain(world: AdviceWorld, whole: SimulatedRounds, trimmed: SimulatedRounds) -> float:
    """Return the speed of a policy over that of whole drafts, minus 1."""
    times = []
    for rounds in (whole, trimmed):
        length, verified = 1.0 + rounds.accepted.mean(), float(rounds.verified.mean())
        steps = [
            n * batch * (world.verify(batch, batch * (1.0 + verified)) + world.draft_ms(batch, K))
            for batch, n in world.weights.items()
        ]
        times.append(sum(steps) / length)
    return times[0] / times[1] - 1.0


def _predicted(server: tuple[Verify, bool]) -> dict[str, Bound]:
    lengths = {f"off_{at}": within(0.02) for at in ASKED}
    bounds = {"held": COVERED, "in_order": Bound(least=0.9), **lengths}
    steady = {"misses_by": Bound(most=0.05), "most_misses_by": Bound(most=0.05)}
    return {**bounds, **steady} if server[1] else bounds


@table(
    "what_if",
    "What thresholds of 0.3, 0.5 and 0.7 would serve, {trials} servers each",
    worlds={
        f"{name}, {'steady' if steady else 'machines differ by 5 %'}": (verify, steady)
        for (name, verify), steady in product(TRUTHS.items(), (True, False))
    },
    wanted=_predicted,
    most_trials=200,
)
def what_if(server: tuple[Verify, bool], seed: int) -> Figures:
    """Return what is predicted for the thresholds on one server, beside the truth.

    held: the true gains between their bounds; in_order: the pairs of thresholds, apart by APART or
    more, in the right order; misses_by: distances of the predicted gains from the true ones, and
    most_misses_by that of verifying only what is accepted; off_THRESHOLD: relative error of the
    tokens per round.
    """
    verify, steady = server
    random = RandomState(seed)
    world = AdviceWorld(
        verify=verify,
        rates=np.full(12, 0.7),
        depth_ms=random.uniform(0.2, 1.2),
        weights=AS_SERVED,
    )
    text = simulated_text(random)
    whole = served(text, 0.0)
    machines = [RandomState(seed) if steady else random for _ in range(2)]
    runs = [recorded(world, k, one) for k, one in zip((K, 1), machines, strict=True)]
    model = fit([run.cells for run in runs])
    assert model is not None
    prediction = policies(model, recorded_on(whole))
    found: dict[float | None, Policy] = {one.threshold: one for one in prediction}
    truth = {at: served(text, at) for at in ASKED}
    gains = {at: true_gain(world, whole, truth[at]) for at in ASKED}
    exact = true_gain(world, whole, replace(whole, verified=whole.accepted))
    (oracle,) = (one for one in prediction if one.name == ORACLE)
    return {
        "held": [holds(found[at].gain.interval, gains[at]) is not False for at in ASKED],
        "in_order": [
            (found[a].gain.value > found[b].gain.value) == (gains[a] > gains[b])
            for a, b in combinations(ASKED, 2)
            if abs(gains[a] - gains[b]) >= APART
        ],
        "misses_by": [abs(found[at].gain.value - gains[at]) for at in ASKED],
        "most_misses_by": abs(oracle.gain.value - exact),
        **{
            f"off_{at}": found[at].mean_length / (1.0 + truth[at].accepted.mean()) - 1.0
            for at in ASKED
        },
    }
