"""Test the ranking of a fleet's replicas, and the comparison of two fleets, from their rollups.

Each replica serves labels and contexts of different acceptance, in steps of time whose own
shift the next one has in part. Wanted: in at most 6.8 % of 400 fleets any replica, or any fleet, is
said to differ that does not; in 90 % the one replica that accepts a fifth less is found. It must
not mislead that a replica, or a day, serves other labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.runs import chance
from benchmarks.calibration.table import FOUND, NEVER, Bound, Figures, table
from driftscope.analysis.replays import summarise_rollups, versus
from driftscope.analysis.rollups import Rollups
from driftscope.analysis.statistics.ratio import MOST_SPANS
from driftscope.findings.case import ReplayCase
from driftscope.findings.rules_circumstances import fleet_replica_differs

K, STEPS = 4, 3 * MOST_SPANS
"""Draft tokens of a round, and steps of time: three in each span."""
LABELS = {"chat": 0.6, "code": 1.4, "json": -0.3}
CONTEXTS = {256: 0.2, 2048: 0.0, 16384: -0.3}
"""Shift of the logit that a draft token is accepted."""
KINDS = tuple(product(LABELS, CONTEXTS))
A_FIFTH = -0.35
"""Logit shift at which four fifths of the tokens are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Truth of one fleet and one day."""

    replicas: int = 200
    rounds: float = 400.0
    """Rounds of a replica in a step of time."""
    own: float = 0.2
    """Standard deviation of a step's own logit shift, half of which the next one has."""
    between: float = 0.0
    """Standard deviation of a replica's own logit shift: users stay on one."""
    sick: float = 0.0
    """Logit shift of the first replica."""
    sick_json: float | None = None
    """Share of JSON in the first replica; None: as in the others."""
    json: float = 0.2
    """Share of JSON."""


Sums = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Rounds by step and kind, and those of them that accepted up to each depth."""


def draw(fleet: Fleet, replica: int, source: np.random.Generator, steps: int = STEPS) -> Sums:
    """Return the sums of one replica."""
    json = fleet.json if replica or fleet.sick_json is None else fleet.sick_json
    mix = np.array([json if label == "json" else (1.0 - json) / 2.0 for label, _ in KINDS])
    rounds = source.poisson(fleet.rounds * mix / len(CONTEXTS), (steps, len(KINDS)))
    shift, own = np.zeros(steps), source.normal(0.0, fleet.own)
    for at, step in enumerate(source.normal(0.0, fleet.own * 0.75**0.5, steps)):
        shift[at], own = own, 0.5 * own + step
    shift += source.normal(0.0, fleet.between) + (0.0 if replica else fleet.sick)
    kind = np.array([LABELS[label] + CONTEXTS[context] for label, context in KINDS])
    chances = chance(kind + shift[:, None])
    reached = [rounds]
    for _ in range(K):
        reached.append(source.binomial(reached[-1], chances))
    return rounds, np.stack(reached[1:], axis=-1)


def rollups_of(fleet: Fleet, source: np.random.Generator) -> Rollups:
    """Return the rollups of a fleet."""
    drawn = [draw(fleet, replica, source) for replica in range(fleet.replicas)]
    accepted = np.stack([accepted for _, accepted in drawn])
    reached = np.concatenate(  # a depth is verified by all rounds, whatever they accept
        [np.stack([rounds for rounds, _ in drawn])[..., None]] * K, axis=-1
    )
    shape = (fleet.replicas, MOST_SPANS, 3, len(KINDS), K)
    rounds, accepted = (some.reshape(shape).sum(axis=2) for some in (reached, accepted))
    has_rounds = rounds > 0
    replica, span, kind, depth = np.nonzero(has_rounds)
    return Rollups(
        path=Path("day"),
        replicas=tuple(f"pod-{at}" for at in range(fleet.replicas)),
        kinds=tuple(("m", "d", "", label, "", str(context)) for label, context in KINDS),
        begin_s=0.0,
        end_s=86400.0,
        replica=replica,
        span=span,
        kind=kind,
        depth=depth + 1,
        rounds=rounds[has_rounds].astype(float),
        accepted=accepted[has_rounds].astype(float),
    )


FLEETS = {
    "200 healthy replicas": Fleet(),
    "200 healthy, spans differ much": Fleet(own=0.5),
    "200 healthy, users stay on one": Fleet(between=0.1),
    "200, one accepts a fifth less": Fleet(sick=A_FIFTH),
    "200, one serves mostly JSON": Fleet(sick_json=0.9),
    "200, one serves mostly JSON and accepts a fifth less": Fleet(sick=A_FIFTH, sick_json=0.9),
    "3 healthy replicas": Fleet(replicas=3),
    "3 replicas, one accepts a fifth less": Fleet(replicas=3, sick=A_FIFTH),
}


def _ranked(fleet: Fleet) -> dict[str, Bound]:
    if not fleet.sick:
        names = ("found", "found another", "it differs", "another differs")
        return dict.fromkeys(names, NEVER)
    wanted = {"found": FOUND, "found another": NEVER}
    # Among three, a sick one is a third of the others.
    return {**wanted, "another differs": NEVER} if fleet.replicas > 3 else wanted


@table(
    "fleets",
    "Rollups of fleets, {trials} each: share in which a replica differs",
    worlds=FLEETS,
    wanted=_ranked,
    most_trials=200,
)
def ranked(fleet: Fleet, seed: int) -> Figures:
    """Return whether the sick replica leads and is found, and whether any other one differs."""
    run = summarise_rollups(rollups_of(fleet, np.random.default_rng([seed, 711])), "day")
    replicas = [cell for cell in run.cells if cell.condition.startswith("pod-")]
    differ = [c.condition for c in replicas if c.length_ratio and c.length_ratio.differs]
    finding = fleet_replica_differs(ReplayCase(run=run))
    return {
        "found": finding is not None and finding.statement.startswith("pod-0 "),
        "found another": finding is not None and not finding.statement.startswith("pod-0 "),
        "another differs": any(name != "pod-0" for name in differ),
        "it differs": "pod-0" in differ,
    }


PAIRS: dict[str, tuple[Fleet, Fleet]] = {
    "two days alike": (Fleet(replicas=20), Fleet(replicas=20)),
    "more JSON": (Fleet(replicas=20), Fleet(replicas=20, json=0.6)),
    "a canary like the others": (Fleet(replicas=20, between=0.05), Fleet(replicas=1)),
    "a canary that accepts a fifth less": (Fleet(replicas=20), Fleet(replicas=1, sick=A_FIFTH)),
}


@table(
    "fleets_compared",
    "Rollups of two fleets, {trials} each: share that differ",
    worlds=PAIRS,
    wanted=lambda pair: {"differ": FOUND if any(fleet.sick for fleet in pair) else NEVER},
    most_trials=400,
)
def compared(pair: tuple[Fleet, Fleet], seed: int) -> Figures:
    """Return whether two fleets differ."""
    source = np.random.default_rng([seed, 712])
    first, other = (
        summarise_rollups(rollups_of(fleet, source), label)
        for fleet, label in zip(pair, "ab", strict=True)
    )
    found = versus(first, other)
    return {"differ": any(one.length_ratio and one.length_ratio.differs for one in found)}
