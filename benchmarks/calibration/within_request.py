"""Test how acceptance is related to the drafter's internals, in simulated rounds of known truth.

In most worlds nothing inside a request goes with acceptance, and a comparison of requests with each
other would say that it does: hard prompts raise the measure and lower acceptance. Wanted: a
relation is reported in at most 6.8 % of 400 trials of such a world (5 % and 1.64 standard errors),
and in at least 90 % where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

from benchmarks.calibration.table import Rate, Table, false, power
from driftscope.analysis.statistics.association import Answer, Rows, association

K = 6
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


WORLDS = {
    "prompts differ (Simpson)": World(),
    "both move along the answer": World(trend=0.5),
    "15 sessions of 4": World(sessions=15),
    "12 requests": World(requests=12),
    "an effect": World(effect=-0.35),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """Shares of the trials of one world by answer."""

    world: str
    relation: bool
    """Whether there is one."""
    called: float
    """Share of trials in which a relation was reported."""
    excluded: float
    undecided: float


def rows_of(world: World, seed: int) -> Rows:
    """Return the rows of one run: a row for each depth that a round reached."""
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
    hit = random.random_sample((n, rounds, K)) < 1 / (1 + np.exp(-logit))
    accepted = np.minimum.accumulate(hit, axis=2).sum(axis=2)
    request, at, depth = np.nonzero(np.arange(K) <= accepted[:, :, None])
    return Rows(
        cluster=session[request],
        stratum=request * K + depth,
        y=hit[request, at, depth].astype(np.float64),
        x=measure[request, at, depth],
        covariates=progress[at][:, None],
    )


def related(trials: int) -> Iterator[Related]:
    """Yield the answers in each world."""
    for name, world in WORLDS.items():
        relations = [association(rows_of(world, seed)) for seed in range(trials)]
        answers = [each.answer() if each else Answer.CANNOT_TELL for each in relations]
        yield Related(
            world=name,
            relation=bool(world.effect),
            called=sum(each in (Answer.LESS, Answer.MORE) for each in answers) / trials,
            excluded=answers.count(Answer.NO) / trials,
            undecided=answers.count(Answer.CANNOT_TELL) / trials,
        )


def _relation(row: Related, trials: int) -> Iterator[Rate]:
    rate = power if row.relation else false
    yield rate("relation called", row.called, trials)


WITHIN_REQUEST = Table(
    name="within_request",
    title="Acceptance against the drafter's internals, {trials} runs each: share of answers",
    rows=related,
    rates=_relation,
)
