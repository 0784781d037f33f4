"""Causes of lost acceptance: context length and label, kinds of text, and the parts of `ablate`.

Each world has a cause, none, or a tempting one. Wanted: a cause that is absent is named in at most
5 % of the runs, one that is present and separable in nearly all of them; if it cannot be separated,
the run reports that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.constructed_drafter import CAUSES, PART_OF, decomposition_of
from support.simulate import Prompts, Truth, chunks
from support.simulate.draw import NEAR
from support.simulate.sums import rounds_by_key

from benchmarks.calibration.table import (
    Figures,
    Rate,
    Table,
    covered,
    false,
    holds,
    mean_of,
    power,
)
from driftscope.ablate.result import Part, Rejections, Remedy, near_misses_of
from driftscope.analysis.circumstances import (
    Group,
    Groups,
    group_of,
    place_in_answer,
    range_name,
    strata_of,
    within_requests_of,
)
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.strata import Cells
from driftscope.findings.case import Case, Entry
from driftscope.findings.rules_circumstances import (
    boundary_dip,
    context_or_label,
    long_context_collapse,
    region_costs,
    template_sensitivity,
)

RULES: dict[str, Entry[Case]] = {
    entry.id: entry for entry in (long_context_collapse, template_sensitivity, context_or_label)
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
    "acceptance falls along the answer": replace(
        BASE, rounds=100, prompts=(Prompts(label="chat", tokens=(60, 400)),), along=-0.3
    ),
    "both, some contexts shared": replace(BASE, **two(LOWER, UPPER, HARDER), context=FARTHER),
}


def named(world: tuple[str, Truth], seed: int) -> Figures:
    """Return which rules speak of one run."""
    case = case_of(replace(world[1], seed=10_000 + seed, prompts_seed=50_000 + seed))
    return {name: entry(case) is not None for name, entry in RULES.items()}


def case_of(truth: Truth, reference: Truth | None = None) -> Case:
    """Return a run, and one that it is compared with, of which only the rounds by circumstance are
    known."""
    other = None if reference is None else _run("reference", reference)
    return Case(run=_run("run", truth), reference=other)


def _run(label: str, truth: Truth) -> Any:
    return SimpleNamespace(
        label=label,
        side=None,
        groups=groups_of(truth),
        rounds=1,
        acceptance=SimpleNamespace(mean_length=1.0),
        manifest=SimpleNamespace(norm_flags={}),
    )


def groups_of(truth: Truth) -> Groups:
    """Return the groups of `truth` by context and label, as in a trace."""
    rounds, power, label, place = _drawn(truth)
    names = [str(kind.label) for kind in truth.prompts]
    powers, context = np.unique(power, return_inverse=True)
    cells = Cells(
        place=place,
        request=rounds.request,
        label=label,
        context=context,
        tokens=rounds.comparable_tokens()[:, 0],
        rounds=rounds.rounds.astype(float),
    )
    ranges = [f"{range_name(exponent)} tokens" for exponent in powers.tolist()]
    return Groups(
        context=tuple(_groups(rounds, context, ranges)),
        label=tuple(_groups(rounds, label, names)),
        **strata_of(cells, ranges, names),
    )


def _groups(rounds: Rounds, of: np.ndarray, names: list[str]) -> Iterator[Group]:
    for at, name in enumerate(names):
        yield group_of(name, rounds.where(of == at))


def _drawn(truth: Truth) -> tuple[Rounds, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rounds by request and range of contexts, with the power of two, the label and the
    place in the answer of each row."""
    keys, accepted, kinds, lengths, first = [], [], [], [], 0
    for chunk in chunks(truth):
        rows = (chunk.accepted >= 0) & (chunk.verified > 0)
        power = np.floor(np.log2(chunk.position[rows] + 1)).astype(np.int64)
        keys.append((first + chunk.request[rows]) * 64 + power)
        lengths.append(np.stack([chunk.tokens, chunk.output]))
        accepted.append(chunk.accepted[rows])
        kinds.append(chunk.kind)
        first += len(chunk.kind)
    rounds, key = rounds_by_key(truth, np.concatenate(keys), np.concatenate(accepted), 64)
    tokens = np.concatenate(lengths, axis=1)[:, key // 64].astype(np.float64)
    return rounds, key % 64, np.concatenate(kinds)[key // 64], place_in_answer(key % 64, *tokens)


def _blamed(world: tuple[str, Truth], row: Figures, trials: int) -> Iterator[Rate]:
    name, _ = world
    cause = name.split(",")[0]
    separable = name.endswith("same contexts") or name == "context, one label"
    for blamed, rule in (("context", "long_context_collapse"), ("label", "template_sensitivity")):
        if cause not in (blamed, "both"):
            yield false(f"{blamed} blamed", row[rule], trials)
        elif separable:
            yield power(f"{blamed} blamed", row[rule], trials)


CIRCUMSTANCES = Table(
    name="circumstances",
    title="Context length and label, {trials} runs each: share in which each rule speaks",
    worlds={name: (name, truth) for name, truth in WORLDS.items()},
    figures=mean_of(named),
    rates=_blamed,
)


TEXT_BASE = Truth(k=4, requests=60, rounds=40, conditional=(0.85, 0.8, 0.76, 0.72))
ALIKE = {"prose": (0.6, 0.0), "json": (0.25, 0.0), "code": (0.15, 0.0)}
HARDER_JSON = {**ALIKE, "json": (0.25, -1.6)}
APART = (
    Prompts(label="chat", text=(0.9, 0.05, 0.05)),
    Prompts(label="tools", text=(0.3, 0.6, 0.1), shift=-1.6),
)
DIP = -1.6
TEXTS: dict[str, tuple[Truth, bool, bool]] = {
    "all kinds alike": (replace(TEXT_BASE, regions=ALIKE), False, False),
    "requests differ much": (replace(TEXT_BASE, regions=ALIKE, between=1.4), False, False),
    "harder requests hold the JSON": (
        replace(TEXT_BASE, regions=ALIKE, prompts=APART),
        False,
        False,
    ),
    "JSON is harder": (replace(TEXT_BASE, regions=HARDER_JSON), True, False),
    "begins are harder": (replace(TEXT_BASE, regions=ALIKE, boundary=DIP), False, True),
    "JSON is last, and acceptance falls along the answer": (
        replace(
            TEXT_BASE,
            regions={"prose": (0.8, 0.0), "code": (0.2, 0.0), "json": (0.1, 0.0)},
            in_order=True,
            along=-0.3,
            rounds=80,
        ),
        False,
        False,
    ),
    "JSON is harder, and acceptance falls along the answer": (
        replace(TEXT_BASE, regions=HARDER_JSON, along=-0.2),
        True,
        False,
    ),
    "both are harder": (replace(TEXT_BASE, regions=HARDER_JSON, boundary=DIP), True, True),
}
"""Truths by name, and whether JSON and begins of blocks are harder."""


def text_kinds(world: tuple[Truth, bool, bool], seed: int) -> Figures:
    """Return which findings are made about one run."""
    case = case_of_text(replace(world[0], seed=10_000 + seed, prompts_seed=50_000 + seed))
    return {"region": region_costs(case) is not None, "begin": boundary_dip(case) is not None}


def case_of_text(truth: Truth) -> Case:
    """Return a run of which only the rounds by kind of text are known."""
    rounds, region, near, place = _blocks(truth)
    names = np.array(list(truth.regions))[region]
    groups = Groups(
        region=tuple(group_of(name, rounds.where(names == name)) for name in np.unique(names)),
        **within_requests_of(rounds, names, near, place),
    )
    run: Any = SimpleNamespace(
        label="run",
        side=None,
        groups=groups,
        rounds=len(rounds),
        acceptance=SimpleNamespace(mean_length=1.0 + rounds.accepted.sum() / len(rounds)),
    )
    return Case(run=run)


def _blocks(truth: Truth) -> tuple[Rounds, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rounds by request and kind of text, with the region, the nearness to a begin and
    the place in the answer of each row."""
    keys, accepted, first = [], [], 0
    for chunk in chunks(truth):
        rows = (chunk.accepted >= 0) & (chunk.verified > 0)
        request = chunk.request[rows]
        token = chunk.position[rows] + 2 - chunk.tokens[request]
        block = token // truth.block_tokens
        near = (token % truth.block_tokens < NEAR) & (block > 0)
        region = chunk.kinds[request, block]
        place = np.floor(np.log2(np.maximum(token, 1))).astype(np.int64)
        keys.append((((first + request) * 8 + region) * 2 + near) * 16 + place)
        accepted.append(chunk.accepted[rows])
        first += len(chunk.kind)
    rounds, key = rounds_by_key(truth, np.concatenate(keys), np.concatenate(accepted), 256)
    return rounds, key // 32 % 8, key // 16 % 2 == 1, key % 16


def _kinds(world: tuple[Truth, bool, bool], row: Figures, trials: int) -> Iterator[Rate]:
    _, harder_region, harder_begin = world
    yield (power if harder_region else false)("region called harder", row["region"], trials)
    yield (power if harder_begin else false)("begins called harder", row["begin"], trials)


TEXT_KINDS = Table(
    name="text_kinds",
    title="Kinds of text, {trials} runs each: share in which each finding is made",
    worlds=TEXTS,
    figures=mean_of(text_kinds),
    rates=_kinds,
)


SEEDS = 50
"""Largest number of runs for each cause."""
PARTS = ("tokens", "states", "rest")


def ablated(cause: str, trials: int) -> Figures:
    """Return the mean loss of agreement, as a share of the positions; and for each part of it the
    share of the runs in which its interval excludes 0, and its mean minus what is true: the whole
    loss if the cause makes it, else 0."""
    made = [decomposition_of(cause, seed) for seed in range(trials)]
    loss = float(np.mean([one.loss.value for one in made]))
    out = {"loss": loss}
    for name in PARTS:
        parts: list[Part] = [getattr(one, name) for one in made]
        out[f"{name}_found"] = float(
            np.mean([bool(part.interval and part.interval.excludes_zero()) for part in parts])
        )
        mean = float(np.mean([part.value for part in parts]))
        out[f"{name}_off"] = mean - loss if PART_OF.get(cause) == name else mean
    return out


PART_OFF = 0.02
"""Largest error of the mean of a part of the loss, as a share of the positions."""


def _parts(cause: str, row: Figures, trials: int) -> Iterator[Rate]:
    for name in PARTS:
        made = PART_OF.get(cause) == name
        yield (power if made else false)(f"{name} found", row[f"{name}_found"], trials)
        yield Rate(
            name=f"error of {name}", value=row[f"{name}_off"], least=-PART_OFF, most=PART_OFF
        )


ABLATIONS = Table(
    name="ablations",
    title="Drafters with a known cause, {trials} runs each: share whose part of the loss is found",
    worlds={cause: cause for cause in CAUSES},
    figures=ablated,
    rates=_parts,
    most_trials=SEEDS,
)


ENDS_OF_PROMPT = 8
"""Mean number of chains of a prompt that end early."""
NEAR_WORLDS = {
    "the target's token is among the best 4": (0.7, 0.2, Remedy.WIDER),
    "the target nearly chose the drafted token": (0.3, 0.7, Remedy.RELAXED),
    "hopeless": (0.3, 0.15, Remedy.TRAINING),
    "half of the ends": (0.5, 0.2, Remedy.CANNOT_TELL),
}
"""Mean shares of the ends by world, around which prompts vary, and what reaches most of them."""
FEW_PROMPTS, MANY_PROMPTS = 16, 64
NearTruth = tuple[float, float, Remedy, int]


def near_missed(truth: NearTruth, seed: int) -> Figures:
    """Return what is said of chains whose ends are drawn with known shares."""
    wide, close, remedy, _ = truth
    found = near_misses_of(list(_ends(np.random.default_rng(seed), truth)))
    assert found is not None
    return {
        "right": found.remedy is remedy,
        "wrong": found.remedy not in (remedy, Remedy.CANNOT_TELL),
        "covered": [holds(found.wider[1].interval, wide), holds(found.close.interval, close)],
    }


def _ends(random: np.random.Generator, truth: NearTruth) -> Iterator[Rejections]:
    wide, close, _, prompts = truth
    for ends in random.poisson(ENDS_OF_PROMPT, prompts):
        among = random.random(ends) < random.beta(8 * wide, 8 * (1 - wide))
        near = random.random(ends) < random.beta(8 * close, 8 * (1 - close))
        yield np.column_stack([np.where(among, 3, 20), np.where(near, 0.8, 0.0)])


def _remedies(truth: NearTruth, row: Figures, trials: int) -> Iterator[Rate]:
    yield false("another remedy named", row["wrong"], trials)
    yield covered("shares", row["covered"], 2 * trials)
    if truth[-1] == MANY_PROMPTS:
        yield power("remedy named", row["right"], trials)


NEAR_MISSES = Table(
    name="near_misses",
    title="Ends of chains with known shares, {trials} runs each: what is said to help",
    worlds={
        f"{world}, {prompts} prompts": (*truth, prompts)
        for world, truth in NEAR_WORLDS.items()
        for prompts in (FEW_PROMPTS, MANY_PROMPTS)
    },
    figures=mean_of(near_missed),
    rates=_remedies,
)
