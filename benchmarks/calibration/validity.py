"""Checks what is said of a measurement's prompts, and the smallest change that it states."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.calibration.table import Rate, Table, false, power
from driftscope.analysis.statistics.intervals import Interval, ratio
from driftscope.analysis.statistics.ratio import ratio_intervals
from driftscope.analysis.validity import RANDOM, TEXT, kind_of_text, smallest_change
from driftscope.workloads.suites.prompts import prompts_of, shipped_sets

_ROOT = Path(__file__).parents[2]
_PROMPTS, _WORDS = 24, 60
Texts = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """Prompts of one kind, and what they are called."""

    world: str
    text: float
    random_tokens: float
    cannot_tell: float


def _pieces(texts: Texts, words: int) -> Callable[[random.Random], Texts]:
    split = [text.split(" ") for text in texts if len(text.split(" ")) > words]

    def draw(source: random.Random) -> Texts:
        out = []
        for _ in range(_PROMPTS):
            text = source.choice(split)
            at = source.randrange(len(text) - words)
            out.append(" ".join(text[at : at + words]))
        return out

    return draw


def _drawn(vocabulary: int, tokens: int) -> Callable[[random.Random], Texts]:
    """Return prompts of random tokens: half of a vocabulary begins a word, half goes on with it."""
    source = random.Random(vocabulary)
    words = [
        source.choice(("", " ")) + "".join(source.choices(string.ascii_lowercase, k=length))
        for length in source.choices(range(2, 8), k=vocabulary)
    ]
    return lambda draw: ["".join(draw.choices(words, k=tokens)) for _ in range(_PROMPTS)]


def _shipped(source: random.Random) -> Texts:
    texts = [prompt.last_text for name in shipped_sets() for prompt in prompts_of(name)]
    return source.sample(texts, _PROMPTS)


def _lists(source: random.Random) -> Texts:
    """Return real prompts that hold lists of words of which none comes again."""
    names = _drawn(4096, 1)(source)
    return [f"{text} {' '.join(names)}" for text in _shipped(source)]


def _read(pattern: str) -> Texts:
    return [path.read_text(encoding="utf-8") for path in sorted(_ROOT.glob(pattern))]


_KINDS: dict[str, tuple[Callable[[random.Random], Texts], str]] = {
    "shipped prompts": (_shipped, TEXT),
    "prose": (_pieces(_read("docs/*.md"), _WORDS), TEXT),
    "code": (_pieces(_read("driftscope/analysis/*.py"), 2 * _WORDS), TEXT),
    "prompts with lists of names": (_lists, TEXT),
    "random tokens of 1,024": (_drawn(1024, 128), RANDOM),
    "random tokens of 32,000": (_drawn(32_000, 128), RANDOM),
    "random tokens of 128,000, short": (_drawn(128_000, 48), RANDOM),
}


def _kinds(trials: int) -> Iterator[KindRow]:
    for name, (draw, _) in _KINDS.items():
        found = [kind_of_text(draw(random.Random(f"{name} {n}"))) for n in range(trials)]
        yield KindRow(
            world=name,
            text=found.count(TEXT) / trials,
            random_tokens=found.count(RANDOM) / trials,
            cannot_tell=found.count(None) / trials,
        )


def _kind_rates(row: KindRow, trials: int) -> Iterator[Rate]:
    right, wrong = (row.text, row.random_tokens)[:: 1 if _KINDS[row.world][1] == TEXT else -1]
    yield Rate(name="wrong kind", value=wrong, most=0.01 + 3.1 * (0.01 / trials) ** 0.5)
    yield power("right kind", right, trials)


PROMPT_KINDS = Table(
    name="prompt_kinds",
    title=f"What {_PROMPTS} prompts are made of, {{trials}} trials",
    rows=_kinds,
    rates=_kind_rates,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """Two measurements of other prompts, and whether their difference is seen."""

    world: str
    requests: int
    smallest: float
    """Mean of the smallest change that the first one states, relative."""
    seen_none: float
    """Share of the trials in which a difference is called without one."""
    seen_smallest: float
    """Share of pairs called different where the second is better by the smallest change that the
    first one states."""
    seen_half: float


def _measured(source: np.random.Generator, requests: int, level: float) -> tuple[float, Interval]:
    """Return an acceptance length and its interval; requests differ in how easy they are."""
    rounds = source.poisson(20, requests) + 5
    easy = source.beta(4.0, 3.0, requests)
    tokens = rounds * (1.0 + 4.0 * easy) * level
    sums = np.stack([tokens + source.normal(0, np.sqrt(2.0 * rounds)), rounds], axis=1)
    found = ratio_intervals(sums[:, :1], sums[:, 1:])
    assert found[0] is not None
    return float(sums[:, 0].sum() / sums[:, 1].sum()), found[0]


def _changes(trials: int) -> Iterator[ChangeRow]:
    for requests in (24, 100):
        sizes, seen = [], np.zeros(3)
        for n in range(trials):
            source = np.random.default_rng([n, requests])
            first = _measured(source, requests, 1.0)
            size = smallest_change(*first) or 0.0
            sizes.append(size)
            for at, change in enumerate((0.0, size, size / 2)):
                second = _measured(source, requests, 1.0 + change)
                found = ratio(*second, *first)
                seen[at] += found is not None and not found[1].low <= 1.0 <= found[1].high
        shares = (seen / trials).tolist()
        yield ChangeRow(
            world="other prompts, requests of mixed ease",
            requests=requests,
            smallest=float(np.mean(sizes)),
            seen_none=shares[0],
            seen_smallest=shares[1],
            seen_half=shares[2],
        )


def _change_rates(row: ChangeRow, trials: int) -> Iterator[Rate]:
    yield false("seen without a change", row.seen_none, trials)
    yield power("seen at the smallest change", row.seen_smallest, trials, least=0.75)
    yield Rate(name="seen at half of it", value=row.seen_half, most=0.5)


SMALLEST_CHANGE = Table(
    name="smallest_change",
    title="The smallest change of the acceptance length that a measurement states, {trials} trials",
    rows=_changes,
    rates=_change_rates,
)
