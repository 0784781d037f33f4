"""Calibration of the drafter's confidence, with planted temperatures and changes of known truth.

In most worlds the confidence is the chance of acceptance, while requests differ, traffic gets
harder or its mix changes: then nothing may be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.calibration.table import (
    COVERED_OF_FEW,
    Figures,
    Rate,
    Table,
    covered,
    false,
    holds,
    known,
    mean_of,
    power,
    slack,
)
from driftscope.analysis.figures.calibration import Calibrations, Scored, calibrations
from driftscope.findings.rules_confidence import confidence_moves, confidence_off

K = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Truth of one world."""

    requests: int = 60
    rounds: int = 40
    temperatures: tuple[float, ...] = (1.0,) * K
    """Number by which the logit of the confidence is too large, by depth."""
    later: float = 1.0
    """Factor of these in the second half of the requests."""
    harder: float = 0.0
    """Fall of the logit of acceptance in the second half."""
    kinds: tuple[float, float] = (1.0, 1.0)
    """Factor of the temperatures in either kind of text."""
    mix: tuple[float, float] = (0.5, 0.5)
    """Share of the second kind in either half."""
    sessions: int = 0
    """Number of sessions that follow each other and share their difficulty."""


WORLDS = {
    "calibrated": World(),
    "calibrated, 10 sessions": World(sessions=10),
    "calibrated, traffic gets harder": World(harder=0.8),
    "kinds are off, their mix changes": World(kinds=(1.0, 2.0), mix=(0.2, 0.8)),
    "too sure with depth": World(temperatures=(1.0, 1.3, 1.8, 2.4)),
    "not sure enough": World(temperatures=(0.6,) * K),
    "too sure from the middle on": World(requests=100, later=2.2),
}


def drawn(world: World, seed: int) -> tuple[Scored, np.ndarray]:
    """Return rounds with their confidences, and the true chance of each token."""
    random = np.random.default_rng(seed)
    n, m = world.requests, world.rounds
    session = np.arange(n) * world.sessions // n if world.sessions else np.arange(n)
    ease = random.normal(0.0, 0.7, int(session.max()) + 1)[session]
    request = np.repeat(np.arange(n), m)
    late = request >= n // 2
    kind = (random.random(n) < np.where(np.arange(n) >= n // 2, *world.mix[::-1]))[request]
    logit = 1.0 + ease[request, None] - 0.2 * np.arange(K) + random.normal(0, 1.0, (n * m, K))
    logit = logit - world.harder * late[:, None]
    heat = np.array(world.temperatures) * np.where(late, world.later, 1.0)[:, None]
    heat = heat * np.where(kind, world.kinds[1], world.kinds[0])[:, None]
    chance = 1.0 / (1.0 + np.exp(-logit))
    hit = random.random((n * m, K)) < chance
    rounds = Scored(
        request=request,
        cluster=session[request],
        accepted=np.minimum.accumulate(hit, axis=1).sum(axis=1),
        drawn=np.full(n * m, K),
        sure=1.0 / (1.0 + np.exp(-logit * heat)),
        time_s=request + np.tile(np.arange(m) / m, n),
        kind=np.where(kind, "code", "prose"),
    )
    return rounds, chance


def _called(made: Calibrations, rule: Any) -> bool:
    run = SimpleNamespace(confidence=SimpleNamespace(calibration=made), side=None)
    return rule.rule(SimpleNamespace(run=run)) is not None


def _true_auroc(world: World, depth: int) -> float:
    """Return the AUROC at a depth over very many requests."""
    made = [calibrations(drawn(world, 10_000 + n)[0]).by_depth[depth].auroc for n in range(40)]
    return float(np.mean([value for value in made if value is not None]))


def _figures(world: World, trials: int) -> Figures:
    planted = world.later == 1.0 and world.kinds[0] == world.kinds[1]
    auroc = _true_auroc(world, 1)

    def trial(world: World, seed: int) -> Figures:
        rounds, chance = drawn(world, seed)
        made = calibrations(rounds)
        inside, biases = [], []
        for at, true in zip(made.by_depth, world.temperatures, strict=True):
            reached = rounds.accepted >= at.depth - 1
            bias = float((rounds.sure - chance)[reached, at.depth - 1].mean())
            biases.append(holds(at.bias_interval, bias))
            inside.append(holds(at.temperature_interval, true) if planted else None)
        return {
            "off": _called(made, confidence_off),
            "moves": _called(made, confidence_moves),
            "covered": known(inside),
            "bias_covered": known(biases),
            "auroc_covered": holds(made.by_depth[1].auroc_interval, auroc),
        }

    return mean_of(trial)(world, trials)


def _rates(world: World, row: Figures, trials: int) -> Iterator[Rate]:
    same = world.later == 1.0
    alike = set(world.temperatures) == {1.0} and world.kinds == (1.0, 1.0)
    yield (false if same else power)("a change is called", row["moves"], trials)
    if alike and same:
        yield false("confidence is called off", row["off"], trials)
    elif same and world.kinds == (1.0, 1.0):
        yield power("confidence is called off", row["off"], trials)
    for name, value in (
        ("planted temperature", row["covered"]),
        ("AUROC", row["auroc_covered"]),
    ):
        if world.sessions:
            yield Rate(name=name, value=value, least=COVERED_OF_FEW - slack(0.1, trials))
        else:
            yield covered(name, value, trials)


CONFIDENCE = Table(
    name="confidence",
    title="Calibration of the drafter's confidence, {trials} runs each: shares",
    worlds=WORLDS,
    figures=_figures,
    rates=_rates,
    most_trials=400,
)
