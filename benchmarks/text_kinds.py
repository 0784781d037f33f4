"""Test kinds of text as causes of lost acceptance, in simulated runs of known truth.

In each world the answers consist of blocks of prose, JSON and code. Acceptance depends on the kind
of text, on the distance to the begin of a block, on the request, or on none of them. Wanted: a
difference that is absent is reported in at most 5 % of the runs, also where requests with much JSON
are harder as a whole; one that is present is reported in nearly all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.simulate import Prompts, Truth, chunks
from support.simulate.sums import rounds_by_key
from support.simulate.text import NEAR

from driftscope.analysis.circumstances import Groups, group_of, within_requests_of
from driftscope.analysis.figures.rounds import Rounds
from driftscope.findings.case import Case
from driftscope.findings.rules_circumstances import boundary_dip, region_costs

BASE = Truth(k=4, requests=60, rounds=40, conditional=(0.85, 0.8, 0.76, 0.72))
ALIKE = {"prose": (0.6, 0.0), "json": (0.25, 0.0), "code": (0.15, 0.0)}
HARDER = {**ALIKE, "json": (0.25, -1.6)}
APART = (
    Prompts(label="chat", text=(0.9, 0.05, 0.05)),
    Prompts(label="tools", text=(0.3, 0.6, 0.1), shift=-1.6),
)
DIP = -1.6
WORLDS: dict[str, tuple[Truth, bool, bool]] = {
    "all kinds alike": (replace(BASE, regions=ALIKE), False, False),
    "requests differ much": (replace(BASE, regions=ALIKE, between=1.4), False, False),
    "harder requests hold the JSON": (replace(BASE, regions=ALIKE, prompts=APART), False, False),
    "JSON is harder": (replace(BASE, regions=HARDER), True, False),
    "begins are harder": (replace(BASE, regions=ALIKE, boundary=DIP), False, True),
    "both are harder": (replace(BASE, regions=HARDER, boundary=DIP), True, True),
}
"""Truths by name, and whether JSON and begins of blocks are harder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKinds:
    """Share of the runs of a world in which each finding is made."""

    world: str
    harder_region: bool
    harder_begin: bool
    region: float
    begin: float


def text_kinds(trials: int) -> Iterator[TextKinds]:
    """Yield each world's result over `trials` runs."""
    for world, (truth, harder_region, harder_begin) in WORLDS.items():
        region = begin = 0
        for trial in range(trials):
            case = case_of(replace(truth, seed=10_000 + trial, prompts_seed=50_000 + trial))
            region += region_costs(case) is not None
            begin += boundary_dip(case) is not None
        yield TextKinds(
            world=world,
            harder_region=harder_region,
            harder_begin=harder_begin,
            region=region / trials,
            begin=begin / trials,
        )


def case_of(truth: Truth) -> Case:
    """Return a run of which only the rounds by kind of text are known."""
    rounds, region, near = _drawn(truth)
    names = np.array(list(truth.regions))[region]
    groups = Groups(
        region=tuple(group_of(name, rounds.where(names == name)) for name in np.unique(names)),
        **within_requests_of(rounds, names, near),
    )
    run: Any = SimpleNamespace(
        label="run",
        groups=groups,
        rounds=len(rounds),
        acceptance=SimpleNamespace(mean_length=1.0 + rounds.accepted.sum() / len(rounds)),
    )
    return Case(run=run)


def _drawn(truth: Truth) -> tuple[Rounds, np.ndarray, np.ndarray]:
    """Return the rounds by request and kind of text, with the region and the nearness to a begin of
    each row."""
    keys, accepted, first = [], [], 0
    for chunk in chunks(truth):
        rows = (chunk.accepted >= 0) & (chunk.drafted > 0)
        request = chunk.request[rows]
        token = chunk.position[rows] + 2 - chunk.tokens[request]
        block = token // truth.block_tokens
        near = (token % truth.block_tokens < NEAR) & (block > 0)
        region = chunk.kinds[request, block]
        keys.append(((first + request) * 8 + region) * 2 + near)
        accepted.append(chunk.accepted[rows])
        first += len(chunk.kind)
    rounds, key = rounds_by_key(truth, np.concatenate(keys), np.concatenate(accepted), 16)
    return rounds, key // 2 % 8, key % 2 == 1
