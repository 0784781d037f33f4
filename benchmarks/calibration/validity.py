"""Checks what is said of a measurement's prompts, and the smallest change that it states."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.calibration.table import Figures, Rate, Table, false, mean_of, power
from driftscope.analysis.statistics.intervals import Interval, ratio
from driftscope.analysis.statistics.ratio import ratio_intervals
from driftscope.analysis.validity import RANDOM, TEXT, kind_of_text, smallest_change
from driftscope.workloads.suites.prompts import prompts_of, shipped_sets

_ROOT = Path(__file__).parents[2]
_PROMPTS, _WORDS = 24, 60
Texts = Sequence[str]


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


def _kinds(kind: tuple[str, Callable[[random.Random], Texts], str], seed: int) -> Figures:
    name, draw, _ = kind
    found = kind_of_text(draw(random.Random(f"{name} {seed}")))
    return {"text": found == TEXT, "random_tokens": found == RANDOM, "cannot_tell": found is None}


def _kind_rates(
    kind: tuple[str, Callable[[random.Random], Texts], str], row: Figures, trials: int
) -> Iterator[Rate]:
    right, wrong = (row["text"], row["random_tokens"])[:: 1 if kind[2] == TEXT else -1]
    yield Rate(name="wrong kind", value=wrong, most=0.01 + 3.1 * (0.01 / trials) ** 0.5)
    yield power("right kind", right, trials)


PROMPT_KINDS = Table(
    name="prompt_kinds",
    title=f"What {_PROMPTS} prompts are made of, {{trials}} trials",
    worlds={name: (name, *kind) for name, kind in _KINDS.items()},
    figures=mean_of(_kinds),
    rates=_kind_rates,
)


def _measured(source: np.random.Generator, requests: int, level: float) -> tuple[float, Interval]:
    """Return an acceptance length and its interval; requests differ in how easy they are."""
    rounds = source.poisson(20, requests) + 5
    easy = source.beta(4.0, 3.0, requests)
    tokens = rounds * (1.0 + 4.0 * easy) * level
    sums = np.stack([tokens + source.normal(0, np.sqrt(2.0 * rounds)), rounds], axis=1)
    found = ratio_intervals(sums[:, :1], sums[:, 1:])
    assert found[0] is not None
    return float(sums[:, 0].sum() / sums[:, 1].sum()), found[0]


def _changes(requests: int, seed: int) -> Figures:
    """Return the smallest change that a first measurement states, and whether a second one is
    called different that has none, that one, or half of it."""
    source = np.random.default_rng([seed, requests])
    first = _measured(source, requests, 1.0)
    size = smallest_change(*first) or 0.0
    seen = []
    for change in (0.0, size, size / 2):
        found = ratio(*_measured(source, requests, 1.0 + change), *first)
        seen.append(found is not None and not found[1].low <= 1.0 <= found[1].high)
    names = ("seen_none", "seen_smallest", "seen_half")
    return {"smallest": size, **dict(zip(names, seen, strict=True))}


def _change_rates(_: int, row: Figures, trials: int) -> Iterator[Rate]:
    yield false("seen without a change", row["seen_none"], trials)
    yield power("seen at the smallest change", row["seen_smallest"], trials, least=0.75)
    yield Rate(name="seen at half of it", value=row["seen_half"], most=0.5)


SMALLEST_CHANGE = Table(
    name="smallest_change",
    title="The smallest change of the acceptance length that a measurement states, {trials} trials",
    worlds={"24 requests of mixed ease": 24, "100 requests of mixed ease": 100},
    figures=mean_of(_changes),
    rates=_change_rates,
)
