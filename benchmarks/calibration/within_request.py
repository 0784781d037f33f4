"""Test how acceptance is related to the drafter's internals, in simulated rounds of known truth.

In most worlds nothing inside a request goes with acceptance, and a comparison of requests with each
other would say that it does: hard prompts raise the measure and lower acceptance. Wanted: a
relation is reported in at most 6.8 % of 400 trials of such a world (5 % and 1.64 standard errors),
and in at least 90 % where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import RandomState

from benchmarks.calibration.table import Figures, Rate, Table, covered, false, holds, mean_of, power
from driftscope.analysis.statistics.association import Answer, Rows, association

K = 6
OFF_AT_MOST = 0.05
"""Largest bias of the mean size, as a share of the true one, beside what chance allows."""
FIRST, FALL = 1.2, 0.15
"""Logit of acceptance at depth 1, and its fall from depth to depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Truth of one world; all effects are on the logit of acceptance."""

    requests: int = 60
    rounds: int = 40
    effect: float = 0.0
    """Effect of the measure's own movement within a request, about one standard deviation."""
    difficulty: float = 0.8
    """Effect of a prompt's difficulty, which raises the measure as well."""
    trend: float = 0.0
    """Rise of the measure and fall of acceptance while the answer grows."""
    sessions: int = 0
    """Number of sessions that share their difficulty; 0: every request has its own."""
    shortest: int = 0
    """Fewest rounds of a request, if their number varies up to `rounds`; 0: all have as many."""


WORLDS = {
    "prompts differ (Simpson)": World(),
    "both move along the answer": World(trend=0.5),
    "15 sessions of 4": World(sessions=15),
    "12 requests": World(requests=12),
    "an effect": World(effect=-0.35),
    "a small effect": World(requests=120, effect=0.15),
    "an effect, answers of 6 to 15 rounds": World(requests=120, rounds=15, shortest=6, effect=0.35),
}


def rows_of(world: World, seed: int) -> Rows:
    """Return the rows of one run."""
    return drawn(world, seed)[0]


def drawn(world: World, seed: int) -> tuple[Rows, np.ndarray]:
    """Return the rows of one run, a row for each depth that a round reached, and the true
    probability of each row's outcome."""
    random = RandomState(seed)
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
    measure = level[:, :, None] + 0.3 * random.standard_normal((n, rounds, K))
    logit = FIRST - world.difficulty * difficulty[:, None] - world.trend * progress
    logit = (logit + world.effect * movement)[:, :, None] - FALL * np.arange(K)
    chance = 1 / (1 + np.exp(-logit))
    hit = random.random_sample((n, rounds, K)) < chance
    accepted = np.minimum.accumulate(hit, axis=2).sum(axis=2)
    lasts = random.randint(world.shortest or rounds, rounds + 1, n)
    there = np.arange(rounds) < lasts[:, None]
    request, at, depth = np.nonzero((np.arange(K) <= accepted[:, :, None]) & there[:, :, None])
    rows = Rows(
        cluster=session[request],
        stratum=request * K + depth,
        y=hit[request, at, depth].astype(np.float64),
        x=measure[request, at, depth],
        covariates=progress[at][:, None],
    )
    return rows, chance[request, at, depth]


def related(world: World, seed: int) -> Figures:
    """Return what is said of one run, and its estimate beside the true size."""
    rows, chance = drawn(world, seed)
    made = association(rows)
    # The truth is what the same fit gives for the probabilities behind the outcomes.
    fit = association(replace(rows, y=chance)) if world.effect else None
    true = fit.per_sd if fit else 0.0
    answer = made.answer() if made else Answer.CANNOT_TELL
    return {
        "called": answer in (Answer.LESS, Answer.MORE),
        "excluded": answer is Answer.NO,
        "undecided": answer is Answer.CANNOT_TELL,
        "covered": holds(made.interval, true) if made else None,
        "estimate": made.per_sd if made else None,
        "true_size": true,
    }


def _relation(world: World, row: Figures, trials: int) -> Iterator[Rate]:
    rate = power if world.effect else false
    yield rate("relation called", row["called"], trials)
    yield covered("true size", row["covered"], trials)
    if world.effect:
        over = row["estimate"] / row["true_size"]
        off = OFF_AT_MOST + 1 / np.sqrt(trials)
        yield Rate(name="size over the true one", value=over, least=1 - off, most=1 + off)


WITHIN_REQUEST = Table(
    name="within_request",
    title="Acceptance against the drafter's internals, {trials} runs each: share of answers",
    worlds=WORLDS,
    figures=mean_of(related),
    rates=_relation,
    times=5,
    formats={"estimate": ".4f", "true_size": ".4f"},
)
