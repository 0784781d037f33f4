"""Test changes over time where requests come in sessions, or the mix of requests changes.

In most worlds the drafter does not change, but requests that follow each other are alike. Wanted: a
drop is reported in at most 6.8 % of 400 such runs (5 % and 1.64 standard errors) if sessions are
known or kinds of requests are labelled; where neither is, no drop of high severity. A step of -0.7
on the logit of acceptance is found in at least 95 % of runs of requests that are independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

from driftscope.analysis.figures.change_points import Changes, Series, changes
from driftscope.findings.finding import Severity
from driftscope.findings.rules_changes import (
    explanation_of,
    severity_of,
    worst_drop,
)

K = 7
LOGITS = (1.4, 0.94, 0.66, 0.41, 0.2, 0.0, -0.16)
"""Logit of acceptance at each depth, given the depth before."""
STEP = -0.7
"""Logit shift that lowers the acceptance length of these runs by about a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Truth of one world; effects are on the logit of acceptance."""

    requests: int = 200
    rounds: int = 24
    sessions_of: int = 1
    """Number of requests of a session, which follow each other."""
    interleaved: bool = False
    """Whether all sessions go on for the whole run instead."""
    keyed: bool = False
    """Whether the recording says which requests belong to one session."""
    alike: float = 0.8
    """Standard deviation of the sessions' own shift."""
    own: float = 0.5
    """Standard deviation of the requests' own shift."""
    nights: float = 0.0
    """Shift of requests of another kind, 9 in 10 of those at night and 1 in 10 by day."""
    labelled: bool = False
    """Whether both kinds have a label."""
    canary: int = 0
    """Number of prompts that are sent again and again, in every fourth request."""
    traffic: float = 0.0
    """Shift of all requests but the canary's from half of the run on."""
    step: float = 0.0
    """Shift of all requests from half of the run on: a change of the drafter."""

    @property
    def drops(self) -> bool:
        """Whether the drafter really loses acceptance."""
        return self.step < 0


WORLDS = {
    "independent requests": World(alike=0.0, own=0.6),
    "sessions of 5, key": World(sessions_of=5, keyed=True),
    "sessions of 20, key": World(requests=800, sessions_of=20, keyed=True),
    "40 sessions interleaved, key": World(
        requests=400, sessions_of=10, interleaved=True, keyed=True
    ),
    "day and night, labelled": World(nights=-1.5, labelled=True),
    "other traffic, canary": World(requests=400, traffic=-1.0, canary=20),
    "sessions of 5, no key": World(sessions_of=5),
    "sessions of 20, no key": World(requests=400, sessions_of=20),
    "day and night, no label": World(nights=-1.5),
    "a step, independent requests": World(alike=0.0, own=0.6, step=STEP),
    "a step, sessions of 5, key": World(requests=400, sessions_of=5, keyed=True, step=STEP),
    "a step of -1.2, sessions of 10, key": World(
        requests=400, sessions_of=10, keyed=True, step=-1.2
    ),
    "a step, 40 sessions interleaved, key": World(
        requests=400, sessions_of=10, interleaved=True, keyed=True, step=STEP
    ),
    "a step, canary": World(requests=400, canary=20, step=STEP),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """Shares of the runs of one world by what is reported."""

    world: str
    drops: bool
    """Whether the drafter really loses acceptance."""
    called: float
    """Share of runs with a drop, of any severity."""
    high: float
    """Share of runs with a drop of high severity."""
    moves: float
    """Share of runs in which acceptance is said to move with traffic, or not to be told from it."""


def drawn(world: World, seed: int) -> Series:
    """Draw one run."""
    random = RandomState(seed)
    n = world.requests
    sessions = -(-n // world.sessions_of)
    session = np.arange(n) % sessions if world.interleaved else np.arange(n) // world.sessions_of
    late, night = np.arange(n) >= n // 2, (np.arange(n) * 4 // n) % 2 == 1
    other = random.random_sample(n) < np.where(night, 0.9, 0.1)
    prompt = np.where(np.arange(n) % 4 == 0, random.randint(0, max(world.canary, 1), n), -1)
    prompt = np.where(world.canary > 0, prompt, -1)
    shift = world.alike * random.standard_normal(sessions)[session]
    shift += world.own * random.standard_normal(n)
    of_prompt = (world.alike + world.own) * random.standard_normal(max(world.canary, 1))
    shift = np.where(prompt >= 0, of_prompt[prompt], shift)
    shift += world.nights * other + world.step * late + world.traffic * (late & (prompt < 0))
    rounds = random.randint(world.rounds // 2, 3 * world.rounds // 2 + 1, n)
    of = np.repeat(np.arange(n), rounds)
    chance = 1 / (1 + np.exp(-(np.array(LOGITS) + shift[of][:, None])))
    hit = random.random_sample(chance.shape) < chance
    tokens = np.bincount(of, 1.0 + np.minimum.accumulate(hit, axis=1).sum(axis=1), n)
    return Series(
        start_s=np.arange(n, dtype=np.float64),
        end_s=float(n),
        tokens=tokens,
        rounds=rounds.astype(np.float64),
        labels=np.where(other & world.labelled, "other", "usual"),
        cluster=session if world.keyed else None,
        prompt=prompt if world.canary else None,
    )


def high(made: Changes | None) -> bool:
    """Whether a drop of high severity is reported."""
    drop = worst_drop(made)
    return made is not None and drop is not None and severity_of(made, drop) is Severity.HIGH


def moves(made: Changes | None) -> bool:
    """Whether acceptance is said to move with the traffic, or not to be told from it."""
    if made is None or worst_drop(made) is not None:
        return False
    there = bool(made.points) or made.raw is not None
    return there and explanation_of(made) is not None


def over_time(trials: int) -> Iterator[OverTime]:
    """Yield the results in each world."""
    for name, world in WORLDS.items():
        made = [changes(drawn(world, seed)) for seed in range(trials)]
        yield OverTime(
            world=name,
            drops=world.drops,
            called=sum(worst_drop(each) is not None for each in made) / trials,
            high=sum(map(high, made)) / trials,
            moves=sum(map(moves, made)) / trials,
        )
