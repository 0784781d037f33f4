"""Causes of lost acceptance: context length and label, kinds of text, and the parts of `ablate`.

Each world has a cause, none, or a tempting one. Wanted: a cause that is absent is named in at most
5 % of the runs, one that is present and separable in nearly all of them; if it cannot be separated,
the run reports that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.constructed_drafter import CAUSES, PART_OF, decomposition_of
from support.simulate import Chunk, Prompts, Truth, chunks
from support.simulate.draw import NEAR
from support.simulate.sums import rounds_by_key

from benchmarks.calibration.table import (
    COVERED,
    FOUND,
    MOSTLY,
    NEVER,
    Bound,
    Figures,
    holds,
    means,
    table,
    within,
)
from driftscope.ablate.result import Part
from driftscope.analysis.circumstances import (
    Group,
    Groups,
    group_of,
    place_in_answer,
    range_name,
    strata_of,
    within_requests_of,
)
from driftscope.analysis.figures.near_misses import NearMisses, Remedy, near_misses_of
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.strata import Cells
from driftscope.findings.case import Case
from driftscope.findings.finding import Severity
from driftscope.findings.rules_circumstances import (
    boundary_dip,
    context_or_label,
    long_context_collapse,
    region_costs,
    template_sensitivity,
)
from driftscope.findings.rules_confidence import EXCLUDED_ABOVE, near_misses

SHORT, LONG, WIDE = (60, 250), (1100, 3900), (60, 3900)
LOWER, UPPER = (60, 900), (300, 3900)
"""Prompt lengths of two labels, in tokens, which overlap from 300 to 900."""
BASE = Truth(requests=150, rounds=24, between=0.5)


HARDER, FARTHER = -1.6, -0.5
"""Logit shifts of the harder label, and of each doubling of the context."""


def one_label(tokens: tuple[int, int] = WIDE, **more: Any) -> Truth:
    """Return a run of one label with prompts of these lengths."""
    return replace(BASE, prompts=(Prompts(label="chat", tokens=tokens),), **more)


def two_labels(
    first: tuple[int, int], second: tuple[int, int], shift: float = 0.0, **more: Any
) -> Truth:
    """Return a run of two labels with these lengths; the second is harder by `shift`."""
    kinds = (Prompts(label="chat", tokens=first), Prompts(label="code", tokens=second, shift=shift))
    return replace(BASE, prompts=kinds, **more)


CONTEXT, LABEL, EITHER = "long_context_collapse", "template_sensitivity", "context_or_label"
RULES = {CONTEXT: long_context_collapse, LABEL: template_sensitivity, EITHER: context_or_label}
NEITHER = {CONTEXT: NEVER, LABEL: NEVER, EITHER: NEVER}
WORLDS: dict[str, tuple[Truth, Mapping[str, Bound]]] = {
    "healthy, one label": (one_label(), NEITHER),
    "healthy, same contexts": (two_labels(WIDE, WIDE), NEITHER),
    "healthy, some contexts shared": (two_labels(LOWER, UPPER), NEITHER),
    "healthy, no context shared": (two_labels(SHORT, LONG), NEITHER),
    "label, same contexts": (two_labels(WIDE, WIDE, HARDER), {CONTEXT: NEVER, LABEL: FOUND}),
    "label, some contexts shared": (
        two_labels(LOWER, UPPER, HARDER),
        {CONTEXT: NEVER, LABEL: MOSTLY},
    ),
    "label, no context shared": (two_labels(SHORT, LONG, HARDER), {CONTEXT: NEVER, EITHER: FOUND}),
    "context, one label": (one_label(context=FARTHER), {CONTEXT: FOUND, LABEL: NEVER}),
    "context, same contexts": (
        two_labels(WIDE, WIDE, context=FARTHER),
        {CONTEXT: FOUND, LABEL: NEVER},
    ),
    "context, some contexts shared": (two_labels(LOWER, UPPER, context=FARTHER), {LABEL: NEVER}),
    "context, no context shared": (
        two_labels(SHORT, LONG, context=FARTHER),
        {LABEL: NEVER, EITHER: FOUND},
    ),
    "both, same contexts": (
        two_labels(WIDE, WIDE, HARDER, context=FARTHER),
        {CONTEXT: FOUND, LABEL: FOUND},
    ),
    "acceptance falls along the answer": (one_label((60, 400), rounds=100, along=-0.3), NEITHER),
    "both, some contexts shared": (two_labels(LOWER, UPPER, HARDER, context=FARTHER), {}),
}
"""Truths, and bounds on how often each rule speaks."""


def _anew(truth: Truth, seed: int) -> Truth:
    return replace(truth, seed=10_000 + seed, prompts_seed=50_000 + seed)


def case_of(truth: Truth, reference: Truth | None = None) -> Case:
    """Return a run, and one that it is compared with, of which only the rounds by circumstance are
    known."""
    other = None if reference is None else _run("reference", groups_of(reference))
    return Case(run=_run("run", groups_of(truth)), reference=other)


def _run(label: str, groups: Groups, length: float = 1.0, rounds: int = 1) -> Any:
    return SimpleNamespace(
        label=label,
        side=None,
        groups=groups,
        rounds=rounds,
        acceptance=SimpleNamespace(mean_length=length),
        manifest=SimpleNamespace(norm_flags={}),
        changes=None,
    )


def groups_of(truth: Truth) -> Groups:
    """Return the groups of `truth` by context and label, as in a trace."""
    rounds, power, label, place = _simulated_rounds(truth)
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


def _verified(truth: Truth) -> Iterator[tuple[int, Chunk, np.ndarray]]:
    """Yield the chunks of a run, each with the number of requests before it and the rows that
    verified something."""
    first = 0
    for chunk in chunks(truth):
        yield first, chunk, (chunk.accepted >= 0) & (chunk.verified > 0)
        first += len(chunk.kind)


def _simulated_rounds(truth: Truth) -> tuple[Rounds, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rounds by request and range of contexts, with the power of two, the label and the
    place in the answer of each row."""
    keys, accepted, kinds, lengths = [], [], [], []
    for first, chunk, rows in _verified(truth):
        power = np.floor(np.log2(chunk.position[rows] + 1)).astype(np.int64)
        keys.append((first + chunk.request[rows]) * 64 + power)
        lengths.append(np.stack([chunk.tokens, chunk.output]))
        accepted.append(chunk.accepted[rows])
        kinds.append(chunk.kind)
    rounds, key = rounds_by_key(truth, np.concatenate(keys), np.concatenate(accepted), 64)
    tokens = np.concatenate(lengths, axis=1)[:, key // 64].astype(np.float64)
    return rounds, key % 64, np.concatenate(kinds)[key // 64], place_in_answer(key % 64, *tokens)


@table(
    "circumstances",
    "Context length and label, {trials} runs each: share in which each rule speaks",
    worlds=WORLDS,
    wanted=lambda world: world[1],
)
def rules_of_run(world: tuple[Truth, Mapping[str, Bound]], seed: int) -> Figures:
    """Return which rules speak of one run."""
    case = case_of(_anew(world[0], seed))
    return {name: entry(case) is not None for name, entry in RULES.items()}


TEXT_BASE = Truth(k=4, requests=60, rounds=40, conditional=(0.85, 0.8, 0.76, 0.72))
ALIKE = {"prose": (0.6, 0.0), "json": (0.25, 0.0), "code": (0.15, 0.0)}
HARDER_JSON = {**ALIKE, "json": (0.25, -1.6)}
APART = (
    Prompts(label="chat", text=(0.9, 0.05, 0.05)),
    Prompts(label="tools", text=(0.3, 0.6, 0.1), shift=-1.6),
)
LAST_JSON = {"prose": (0.8, 0.0), "code": (0.2, 0.0), "json": (0.1, 0.0)}
DIP = -1.6


def _text(region: Bound, begin: Bound, **more: Any) -> tuple[Truth, Mapping[str, Bound]]:
    return replace(TEXT_BASE, **{"regions": ALIKE, **more}), {"region": region, "begin": begin}


TEXTS = {
    "all kinds alike": _text(NEVER, NEVER),
    "requests differ much": _text(NEVER, NEVER, between=1.4),
    "harder requests hold the JSON": _text(NEVER, NEVER, prompts=APART),
    "JSON is harder": _text(FOUND, NEVER, regions=HARDER_JSON),
    "begins are harder": _text(NEVER, FOUND, boundary=DIP),
    "JSON is last, and acceptance falls along the answer": _text(
        NEVER, NEVER, regions=LAST_JSON, in_order=True, along=-0.3, rounds=80
    ),
    "JSON is harder, and acceptance falls along the answer": _text(
        FOUND, NEVER, regions=HARDER_JSON, along=-0.2
    ),
    "both are harder": _text(FOUND, FOUND, regions=HARDER_JSON, boundary=DIP),
}
"""Truths, and bounds on how often JSON and begins of blocks are called harder."""


def case_of_text(truth: Truth) -> Case:
    """Return a run of which only the rounds by kind of text are known."""
    rounds, region, near, place = _blocks(truth)
    names = np.array(list(truth.regions))[region]
    groups = Groups(
        region=tuple(group_of(name, rounds.where(names == name)) for name in np.unique(names)),
        **within_requests_of(rounds, names, near, place),
    )
    length = 1.0 + rounds.accepted.sum() / len(rounds)
    return Case(run=_run("run", groups, length, len(rounds)))


def _blocks(truth: Truth) -> tuple[Rounds, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rounds by request and kind of text, with the region, the nearness to a begin and
    the place in the answer of each row."""
    keys, accepted = [], []
    for first, chunk, rows in _verified(truth):
        request = chunk.request[rows]
        token = chunk.position[rows] + 2 - chunk.tokens[request]
        block = token // truth.block_tokens
        near = (token % truth.block_tokens < NEAR) & (block > 0)
        region = chunk.kinds[request, block]
        place = np.floor(np.log2(np.maximum(token, 1))).astype(np.int64)
        keys.append((((first + request) * 8 + region) * 2 + near) * 16 + place)
        accepted.append(chunk.accepted[rows])
    rounds, key = rounds_by_key(truth, np.concatenate(keys), np.concatenate(accepted), 256)
    return rounds, key // 32 % 8, key // 16 % 2 == 1, key % 16


@table(
    "text_kinds",
    "Kinds of text, {trials} runs each: share in which each finding is made",
    worlds=TEXTS,
    wanted=lambda world: world[1],
)
def text_kinds(world: tuple[Truth, Mapping[str, Bound]], seed: int) -> Figures:
    """Return which findings are made about one run."""
    case = case_of_text(_anew(world[0], seed))
    return {"region": region_costs(case) is not None, "begin": boundary_dip(case) is not None}


PARTS = ("tokens", "states", "rest")
SEEDS = 50
"""Largest number of runs for each cause."""


def _errors(cause: str, made: Sequence[Figures]) -> Figures:
    """Return the error of each part: the mean minus what is true, which is the whole loss if the
    cause makes it, else 0."""
    row = dict(means(cause, made))
    if cause in PART_OF:
        row[f"{PART_OF[cause]}_off"] -= row["loss"]
    return row


def _bounds_of_parts(cause: str) -> dict[str, Bound]:
    found = {f"{p}_found": FOUND if PART_OF.get(cause) == p else NEVER for p in PARTS}
    return found | {f"{part}_off": within(0.02) for part in PARTS}


@table(
    "ablations",
    "Drafters with a known cause, {trials} runs each: share whose part of the loss is found",
    worlds={cause: cause for cause in CAUSES},
    summary=_errors,
    wanted=_bounds_of_parts,
    most_trials=SEEDS,
)
def ablated(cause: str, seed: int) -> Figures:
    """Return the loss of agreement of one drafter, as a share of the positions; and for each part
    of it whether its interval excludes 0, and its size."""
    decomposition = decomposition_of(cause, seed)
    parts: dict[str, Part] = {name: getattr(decomposition, name) for name in PARTS}
    return {
        "loss": decomposition.loss.value,
        **{f"{p}_found": bool(v.interval and v.interval.excludes_zero()) for p, v in parts.items()},
        **{f"{p}_off": part.value for p, part in parts.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of chains with known mean shares, around which prompts vary."""

    wide: float
    """Share of the ends at which the target's token is among the best 4."""
    close: float
    """Share at which the target nearly chose the drafted token."""
    remedy: Remedy
    """Remedy that reaches most of these ends."""
    prompts: int
    excluded: float = 0.0
    """Share of the drafted tokens that the request's own top-k excludes."""


FEW_PROMPTS, MANY_PROMPTS = 16, 64
ENDS = {
    f"{world}, {prompts} prompts": Ends(wide=wide, close=close, remedy=remedy, prompts=prompts)
    for world, wide, close, remedy in (
        ("the target's token is among the best 4", 0.7, 0.2, Remedy.WIDER),
        ("the target nearly chose the drafted token", 0.3, 0.7, Remedy.RELAXED),
        ("hopeless", 0.3, 0.15, Remedy.TRAINING),
        ("half of the ends", 0.5, 0.2, Remedy.CANNOT_TELL),
    )
    for prompts in (FEW_PROMPTS, MANY_PROMPTS)
} | {
    f"top-k excludes {share:.0%}": Ends(
        wide=0.3, close=0.15, remedy=Remedy.TRAINING, prompts=MANY_PROMPTS, excluded=share
    )
    for share in (EXCLUDED_ABOVE.value, 0.25)
}


def _near_misses(random: np.random.Generator, ends: Ends) -> NearMisses | None:
    prompt = np.repeat(np.arange(ends.prompts), random.poisson(8, ends.prompts))

    def drawn(share: float) -> np.ndarray:
        chances = random.beta(8 * share, 8 * (1 - share), ends.prompts) if share else [0.0]
        return random.random(len(prompt)) < np.resize(chances, ends.prompts)[prompt]

    among, near, excluded = map(drawn, (ends.wide, ends.close, ends.excluded))
    return near_misses_of(np.where(among, 3.0, 20.0), np.where(near, 0.8, 0.0), excluded, prompt)


def _remedies(ends: Ends) -> dict[str, Bound]:
    wanted = {"wrong": NEVER, "covered": COVERED}
    wanted["excluded"] = FOUND if ends.excluded > EXCLUDED_ABOVE.value else NEVER
    return wanted | ({"right": FOUND} if ends.prompts == MANY_PROMPTS else {})


@table(
    "near_misses",
    "Ends of chains with known shares, {trials} runs each: what is said to help",
    worlds=ENDS,
    wanted=_remedies,
)
def near_missed(ends: Ends, seed: int) -> Figures:
    """Return what is said of chains whose ends are drawn with known shares."""
    found = _near_misses(np.random.default_rng(seed), ends)
    assert found is not None
    case: Any = SimpleNamespace(run=SimpleNamespace(confidence=SimpleNamespace(near_misses=found)))
    finding = near_misses.rule(case)
    shares = (found.wider[1].interval, ends.wide), (found.close.interval, ends.close)
    return {
        "right": found.remedy is ends.remedy,
        "wrong": found.remedy not in (ends.remedy, Remedy.CANNOT_TELL),
        "excluded": finding is not None and finding.severity is Severity.MEDIUM,
        "covered": [holds(interval, true) for interval, true in shares],
    }
