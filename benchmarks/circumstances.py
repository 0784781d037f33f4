"""Test context length and label as causes of lost acceptance, in simulated runs of known truth.

In each world labels differ in context length, or not, and acceptance depends on the label, on the
length of the context, on both or on neither. Wanted: a rule reports an effect that is absent in at
most 5 % of the runs, and one that is present and separable in nearly all of them. If it cannot be
separated, the run reports that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.simulate import Prompts, Truth, chunks
from support.simulate.sums import rounds_by_key

from driftscope.analysis.circumstances import Group, Groups, group_of, range_name, strata_of
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.strata import Cells
from driftscope.findings.case import Case, Entry
from driftscope.findings.rules_circumstances import CIRCUMSTANCE_ENTRIES

RULES: dict[str, Entry[Case]] = {
    entry.id: entry
    for entry in CIRCUMSTANCE_ENTRIES
    if entry.id in ("long_context_collapse", "template_sensitivity", "context_or_label")
}
SHORT, LONG, WIDE = (60, 250), (1100, 3900), (60, 3900)
LOWER, UPPER = (60, 900), (300, 3900)
"""Prompt lengths of two labels, in tokens, which overlap from 300 to 900."""
BASE = Truth(requests=150, rounds=24, between=0.5)


def two(first: tuple[int, int], second: tuple[int, int], shift: float = 0.0) -> dict[str, Any]:
    """Return prompts of two labels with these lengths; the second is harder by `shift`."""
    kinds = (Prompts(label="chat", tokens=first), Prompts(label="code", tokens=second, shift=shift))
    return {"prompts": kinds}


HARDER, FARTHER = -1.6, -0.5
"""Logit shifts of the harder label, and of each doubling of the context."""
WORLDS = {
    "healthy, one label": replace(BASE, prompts=(Prompts(label="chat", tokens=WIDE),)),
    "healthy, same contexts": replace(BASE, **two(WIDE, WIDE)),
    "healthy, some contexts shared": replace(BASE, **two(LOWER, UPPER)),
    "healthy, no context shared": replace(BASE, **two(SHORT, LONG)),
    "label, same contexts": replace(BASE, **two(WIDE, WIDE, HARDER)),
    "label, some contexts shared": replace(BASE, **two(LOWER, UPPER, HARDER)),
    "label, no context shared": replace(BASE, **two(SHORT, LONG, HARDER)),
    "context, one label": replace(
        BASE, prompts=(Prompts(label="chat", tokens=WIDE),), context=FARTHER
    ),
    "context, same contexts": replace(BASE, **two(WIDE, WIDE), context=FARTHER),
    "context, some contexts shared": replace(BASE, **two(LOWER, UPPER), context=FARTHER),
    "context, no context shared": replace(BASE, **two(SHORT, LONG), context=FARTHER),
    "both, same contexts": replace(BASE, **two(WIDE, WIDE, HARDER), context=FARTHER),
    "both, some contexts shared": replace(BASE, **two(LOWER, UPPER, HARDER), context=FARTHER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Number of runs of a world in which each rule fires."""

    world: str
    long_context_collapse: float
    template_sensitivity: float
    context_or_label: float


def named(trials: int) -> Iterator[Named]:
    """Yield each world's result over `trials` runs."""
    for world, truth in WORLDS.items():
        spoke = dict.fromkeys(RULES, 0)
        for trial in range(trials):
            case = case_of(replace(truth, seed=10_000 + trial, prompts_seed=50_000 + trial))
            for name, entry in RULES.items():
                spoke[name] += entry.rule(case) is not None
        yield Named(world=world, **{name: n / trials for name, n in spoke.items()})


def case_of(truth: Truth, reference: Truth | None = None) -> Case:
    """Return a run, and one that it is compared with, of which only the rounds by circumstance are
    known."""
    other = None if reference is None else _run("reference", reference)
    return Case(run=_run("run", truth), reference=other)


def _run(label: str, truth: Truth) -> Any:
    return SimpleNamespace(
        label=label,
        groups=groups_of(truth),
        rounds=1,
        acceptance=SimpleNamespace(mean_length=1.0),
        manifest=SimpleNamespace(norm_flags={}),
    )


def groups_of(truth: Truth) -> Groups:
    """Return the groups of `truth` by context and label, as in a trace."""
    rounds, power, label = _drawn(truth)
    names = [str(kind.label) for kind in truth.prompts]
    powers, context = np.unique(power, return_inverse=True)
    cells = Cells(
        request=rounds.request,
        label=label,
        context=context,
        tokens=rounds.comparable_tokens()[:, 0],
        rounds=rounds.rounds.astype(float),
    )
    ranges = [f"{range_name(each)} tokens" for each in powers.tolist()]
    return Groups(
        context=tuple(_groups(rounds, context, ranges)),
        label=tuple(_groups(rounds, label, names)),
        **strata_of(cells, ranges, names),
    )


def _groups(rounds: Rounds, of: np.ndarray, names: list[str]) -> Iterator[Group]:
    for at, name in enumerate(names):
        yield group_of(name, rounds.where(of == at))


def _drawn(truth: Truth) -> tuple[Rounds, np.ndarray, np.ndarray]:
    """Return the rounds by request and range of contexts, with the power of two and the label of
    each row."""
    keys, accepted, kinds, first = [], [], [], 0
    for chunk in chunks(truth):
        rows = (chunk.accepted >= 0) & (chunk.drafted > 0)
        power = np.floor(np.log2(chunk.position[rows] + 1)).astype(np.int64)
        keys.append((first + chunk.request[rows]) * 64 + power)
        accepted.append(chunk.accepted[rows])
        kinds.append(chunk.kind)
        first += len(chunk.kind)
    rounds, key = rounds_by_key(truth, np.concatenate(keys), np.concatenate(accepted), 64)
    return rounds, key % 64, np.concatenate(kinds)[key // 64]
