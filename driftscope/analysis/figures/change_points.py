"""When acceptance changed: points in time on either side of which requests accept differently.

Binary segmentation over requests in order of their start. A split is taken when the largest
difference that any split of the requests shows is larger than in almost all random orders of the
same requests. So no round counts as independent of the others of its request, and a run that does
not change is cut in at most ALPHA of cases (`make calibration`). Each level of further splits is
tested at a share of ALPHA, so that all of one level together keep to it.

In a run of several K requests do not all scatter alike: those of a long K scatter more, and where K
changes with time so does the scatter. Random orders would then find changes in it. There each
request stays in its place and keeps the size of its residual; its sign is random (wild bootstrap:
Wu 1986, https://doi.org/10.1214/aos/1176350142).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.interval import Interval, ratio_intervals, ratio_of, student

ALPHA = 0.05
"""Share of runs without a change that may be cut."""
ORDERS = 999
"""Random orders that a split is held against: its p-value has a granularity of 0.001."""
LEAST = 10
"""Requests on either side of a split. With fewer an interval over requests is far too narrow."""
BLOCKS = 400
"""Parts, of neighbouring requests, that are put in a random order where there are more requests."""
DEPTH = 3
"""Levels of splits: at most 7 points, the last of them tested at ALPHA / 4."""
SEED = 20260511


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Neighbouring requests between two changes, or an end of the run."""

    start_s: float
    """Unix time at which the first of them starts to decode."""
    end_s: float
    """The same of the first one after them; of the last level the end of the run."""
    requests: int
    rounds: int
    mean_length: float
    interval: Interval | None
    """95 % over requests, of these as they are: not widened for having been looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """Acceptance is not the same before and after."""

    time_s: float
    """Unix time at which the first request after it starts to decode."""
    before: float
    """Acceptance length of the level that ends here."""
    after: float
    difference: float
    """After less before."""
    interval: Interval | None
    """95 % of the difference, as in `Level`."""
    same_mix: float | None
    """The difference with each workload label's share held at that of both levels together; None
    where no label has requests on both sides. Near 0: the mix of requests changed, not the
    drafter's luck with them."""
    p: float
    """Share of random orders in which the largest difference of any split is as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How a run's acceptance went over time: as many levels as points, and one more."""

    requests: int
    """Requests with a round."""
    points: tuple[ChangePoint, ...]
    """In order of time; none: no change was found."""
    levels: tuple[Level, ...]
    gradual: bool | None
    """Whether a straight line over time says more of the requests than one step does, so that the
    points stand for a slope; None without a point."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Requests in order of their start, [requests] each."""

    start_s: Matrix
    end_s: float
    """Of the run."""
    tokens: Matrix
    """Tokens of all rounds, the accepted ones and the target's own, without what a
    request's own mix of K adds."""
    rounds: Matrix
    labels: NDArray[np.str_]
    several_k: bool = False
    """Whether requests may scatter differently, because they drafted with different K."""


def changes_of(run: Sums) -> Changes | None:
    """The changes of a run; None with too few requests to find one."""
    mine = run.rounds.rounds > 0
    if not mine.any():
        return None
    start_s, end_s = run.first_s[mine], float(run.last_s[mine].max())
    tokens, rounds = run.rounds.comparable_tokens()[mine, 0], run.rounds.rounds[mine]
    labels = np.array([str(label) for label in run.requests.labels])[run.rounds.request[mine]]
    order = np.argsort(start_s, kind="stable")
    return changes(
        Series(
            start_s=start_s[order],
            end_s=end_s,
            tokens=tokens[order],
            rounds=rounds[order].astype(np.float64),
            labels=labels[order],
            several_k=bool(run.rounds.mix.any()),
        )
    )


def changes(series: Series) -> Changes | None:
    """The same of requests that are in order already."""
    n = len(series.start_s)
    if n < 2 * LEAST:
        return None
    random = np.random.RandomState(SEED)
    found = sorted(_splits(series, 0, n, DEPTH, random))
    cuts = [0, *(at for at, _ in found), n]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    sides = zip(found, parts[:-1], parts[1:], strict=True)
    return Changes(
        requests=n,
        points=tuple(_point(series, before, after, p) for (_, p), before, after in sides),
        levels=tuple(_level(series, part) for part in parts),
        gradual=_gradual(series) if found else None,
    )


def _splits(
    series: Series, first: int, end: int, depth: int, random: np.random.RandomState
) -> Iterator[tuple[int, float]]:
    """Where requests from `first` to `end` are split, and the p-value of each."""
    if end - first < 2 * LEAST or not depth:
        return
    null = _signs if series.several_k else _orders
    p = _p_value(series.tokens[first:end], series.rounds[first:end], null, random)
    if p > ALPHA / 2 ** (DEPTH - depth):
        return
    at = first + int(
        _split_statistic(series.tokens[first:end], series.rounds[first:end], LEAST).argmax()
    )
    yield at, p
    yield from _splits(series, first, at, depth - 1, random)
    yield from _splits(series, at, end, depth - 1, random)


def _split_statistic(tokens: Matrix, rounds: Matrix, least: int) -> Matrix:
    """[..., n] how far apart the requests before each one and the rest are; 0 within `least` of an
    end. Rounds are the weights, so it is the difference of two acceptance lengths over its standard
    error, but for a factor that all splits and orders have in common."""
    left, below = np.cumsum(tokens, axis=-1), np.cumsum(rounds, axis=-1)
    all_tokens, all_rounds = left[..., -1:], below[..., -1:]
    out = np.zeros_like(left)
    inner = slice(least - 1, left.shape[-1] - least)
    n, t = below[..., inner], left[..., inner]
    gap = np.abs(t / n - (all_tokens - t) / (all_rounds - n))
    out[..., inner.start + 1 : inner.stop + 1] = gap * np.sqrt(n * (all_rounds - n))
    return out


Null = Callable[[Matrix, Matrix, np.random.RandomState], tuple[Matrix, Matrix]]
"""Makes the tokens and rounds, [ORDERS, n], of runs without a change out of those of a run."""


def _orders(tokens: Matrix, rounds: Matrix, random: np.random.RandomState) -> tuple[Matrix, Matrix]:
    orders = np.argsort(random.random_sample((ORDERS, len(tokens))), axis=1)
    return tokens[orders], rounds[orders]


def _signs(tokens: Matrix, rounds: Matrix, random: np.random.RandomState) -> tuple[Matrix, Matrix]:
    level = rounds * (tokens.sum() / rounds.sum())
    signs = random.choice([-1.0, 1.0], size=(ORDERS, len(tokens)))
    return level + signs * (tokens - level), np.broadcast_to(rounds, signs.shape)


def _p_value(tokens: Matrix, rounds: Matrix, null: Null, random: np.random.RandomState) -> float:
    """Return the share of runs of the null with as large a difference at any split."""
    at = np.unique(np.linspace(0, len(tokens), BLOCKS + 1).astype(int))[:-1]
    least = max(1, LEAST * len(at) // len(tokens))
    tokens, rounds = np.add.reduceat(tokens, at), np.add.reduceat(rounds, at)
    shuffled = _split_statistic(*null(tokens, rounds, random), least).max(axis=1)
    real = _split_statistic(tokens, rounds, least).max()
    return float((1 + (shuffled >= real).sum()) / (1 + ORDERS))


def _point(series: Series, before: slice, after: slice, p: float) -> ChangePoint:
    ratios = [
        ratio_of(series.tokens[part, None], series.rounds[part, None]) for part in (before, after)
    ]
    (a, b), (va, vb) = [float(r.value[0]) for r in ratios], [float(r.error[0]) for r in ratios]
    half = float(student(min(float(r.df[0]) for r in ratios))) * float(np.hypot(va, vb))
    return ChangePoint(
        time_s=float(series.start_s[after.start]),
        before=a,
        after=b,
        difference=b - a,
        interval=Interval.of(b - a - half, b - a + half),
        same_mix=_same_mix(series, before, after),
        p=p,
    )


def _same_mix(series: Series, before: slice, after: slice) -> float | None:
    shared = sorted(set(series.labels[before]) & set(series.labels[after]))
    weights, gaps = [], []
    for label in shared:
        sums = [
            (series.tokens[part][mine].sum(), series.rounds[part][mine].sum())
            for part in (before, after)
            for mine in [series.labels[part] == label]
        ]
        (ta, na), (tb, nb) = sums
        weights.append(na + nb)
        gaps.append(tb / nb - ta / na)
    return float(np.average(gaps, weights=weights)) if shared else None


def _level(series: Series, part: slice) -> Level:
    tokens, rounds = series.tokens[part], series.rounds[part]
    spread = ratio_intervals(tokens[:, None], rounds[:, None])
    last = part.stop >= len(series.start_s)
    return Level(
        start_s=float(series.start_s[part.start]),
        end_s=series.end_s if last else float(series.start_s[part.stop]),
        requests=len(tokens),
        rounds=int(rounds.sum()),
        mean_length=float(tokens.sum() / rounds.sum()),
        interval=spread[0] if spread else None,
    )


def _gradual(series: Series) -> bool:
    """Whether a line fits better than the best single step: both have two levels to choose, and
    the step its place besides."""
    value, weight, time = series.tokens / series.rounds, series.rounds, series.start_s
    at = int(_split_statistic(series.tokens, series.rounds, LEAST).argmax())
    step = sum(_around_mean(value[part], weight[part]) for part in (slice(at), slice(at, None)))
    t, v = time - np.average(time, weights=weight), value - np.average(value, weights=weight)
    spread = (weight * t * t).sum()
    slope = (weight * t * v).sum() / spread if spread > 0 else 0.0
    return bool((weight * np.square(v - slope * t)).sum() < step)


def _around_mean(value: Matrix, weight: Matrix) -> float:
    return float((weight * np.square(value - np.average(value, weights=weight))).sum())
