"""Checks what is predicted of confidence thresholds on simulated servers that run them, too.

A token is easy or hard, and neighbours are alike. The drafter guesses it, or not, whatever depth it
drafts it at, except for what depth costs; its confidence is its chance. The same text is then
served with each threshold, which gives the truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from benchmarks.calibration.k_advice import TRUTHS, Verify, World, recorded
from benchmarks.calibration.table import Figures, Rate, Table, covered, holds, mean_of
from driftscope.analysis.cost import fit
from driftscope.analysis.figures.calibration import Scored, calibrations
from driftscope.analysis.policies import ORACLE, Policy, Recorded, policies
from driftscope.analysis.time_per_token import RoundLength

K = 5
ASKED = (0.3, 0.5, 0.7)
REQUESTS, TOKENS = 60, 200
APART = 0.02
"""Difference of speed from which two thresholds have an order."""
BATCHES = {1: 400, 4: 400, 16: 400, 64: 400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Chance and luck of each token, [requests, tokens]; a depth lowers the logit."""

    logit: NDArray[np.float64]
    luck: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds as served, arrays of [rounds] and [rounds, K]."""

    request: NDArray[np.int64]
    accepted: NDArray[np.int64]
    verified: NDArray[np.int64]
    sure: NDArray[np.float64]


def written(random: RandomState) -> Text:
    """Return text with easy and hard stretches."""
    state = random.standard_normal(REQUESTS)
    logit = np.empty((REQUESTS, TOKENS + K + 1))
    for at in range(logit.shape[1]):
        state = 0.7 * state + math.sqrt(1 - 0.49) * random.standard_normal(REQUESTS)
        logit[:, at] = 0.8 + 1.6 * state
    return Text(logit=logit, luck=random.random_sample(logit.shape))


def served(text: Text, threshold: float) -> Rounds:
    """Serve the text with drafts verified up to a confidence below the threshold."""
    at = np.zeros(REQUESTS, dtype=np.int64)
    parts: list[tuple[NDArray[np.int64], ...]] = []
    sures = []
    every, depth = np.arange(REQUESTS), np.arange(K)
    while (going := at < TOKENS).any():
        who = every[going]
        places = at[going][:, None] + depth
        chance = 1 / (1 + np.exp(-(text.logit[who[:, None], places] - 0.15 * depth)))
        hit = text.luck[who[:, None], places] < chance
        verified = np.minimum.accumulate(chance >= threshold, axis=1).sum(axis=1)
        accepted = np.minimum(np.minimum.accumulate(hit, axis=1).sum(axis=1), verified)
        parts.append((who, accepted, verified))
        sures.append(chance)
        at[going] += accepted + 1
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    sure = np.concatenate(sures)
    order = np.argsort(columns[0], kind="stable")
    request, accepted, verified = (column[order] for column in columns)
    return Rounds(request=request, accepted=accepted, verified=verified, sure=sure[order])


def recorded_on(rounds: Rounds) -> Recorded:
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
    error = float(by_request.std() / math.sqrt(REQUESTS) / value)
    return Recorded(
        k=K,
        length=RoundLength(value=value, error=error),
        trimmed=calibrations(scored).trimmed,
        tokens_per_s=1000.0,
    )


def true_gain(world: World, whole: Rounds, trimmed: Rounds) -> float:
    """Return the speed of a policy over that of whole drafts, minus 1."""
    times = []
    for rounds in (whole, trimmed):
        length, verified = 1.0 + rounds.accepted.mean(), float(rounds.verified.mean())
        steps = [
            n * batch * (world.verify(batch, batch * (1.0 + verified)) + world.draft_ms(batch, K))  # type: ignore[arg-type]
            for batch, n in world.weights.items()
        ]
        times.append(sum(steps) / length)
    return times[0] / times[1] - 1.0


def what_if(server: tuple[Verify, bool], seed: int) -> Figures:
    """Return what is predicted for the thresholds on one server, beside the truth.

    held: the true gains between their bounds; in_order: the pairs of thresholds, apart by APART or
    more, in the right order; misses_by: distances of the predicted gains from the true ones, and
    most_misses_by that of verifying only what is accepted; off_THRESHOLD: relative error of the
    tokens per round.
    """
    verify, steady = server
    random = RandomState(seed)
    world = World(
        verify=verify,
        rates=np.full(12, 0.7),
        depth_ms=random.uniform(0.2, 1.2),
        weights=BATCHES,
    )
    text = written(random)
    whole = served(text, 0.0)
    machines = [RandomState(seed) if steady else random for _ in range(2)]
    runs = [recorded(world, k, one) for k, one in zip((K, 1), machines, strict=True)]
    model = fit([run.cells for run in runs])
    assert model is not None
    made = policies(model, recorded_on(whole))
    found: dict[float | None, Policy] = {one.threshold: one for one in made}
    truth = {at: served(text, at) for at in ASKED}
    gains = {at: true_gain(world, whole, truth[at]) for at in ASKED}
    exact = true_gain(world, whole, replace(whole, verified=whole.accepted))
    (oracle,) = (one for one in made if one.name == ORACLE)
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


def _rates(server: tuple[Verify, bool], row: Figures, trials: int) -> Iterator[Rate]:
    yield covered("true gain between the bounds", row["held"], trials)
    yield Rate(name="thresholds in order", value=row["in_order"], least=0.9)
    if server[1]:
        yield Rate(name="gain misses by", value=row["misses_by"], most=0.05)
        yield Rate(name="largest gain misses by", value=row["most_misses_by"], most=0.05)
    for at in ASKED:
        yield Rate(name=f"tokens per round off at {at}", value=abs(row[f"off_{at}"]), most=0.02)


WHAT_IF = Table(
    name="what_if",
    title="What thresholds of 0.3, 0.5 and 0.7 would serve, {trials} servers each",
    worlds={
        f"{name}, {'steady' if steady else 'machines differ by 5 %'}": (verify, steady)
        for (name, verify), steady in product(TRUTHS.items(), (True, False))
    },
    figures=mean_of(what_if),
    rates=_rates,
    most_trials=200,
)
