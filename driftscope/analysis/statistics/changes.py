"""Test whether requests differ before and after some moment, and what must not count as a change.

The statistic is the largest standardised difference over all splits; its reference is the same
data in random orders, so that a search over all splits is accounted for (Ernst 2004,
https://doi.org/10.1214/088342304000000396). What is put in a random order decides what may differ
without a change:

- clusters, in order of their first request: requests of one cluster, such as a session, may be
  alike. If clusters scatter differently, each keeps its place and size, and only the sign of its
  residual is random (wild bootstrap: Wu 1986, https://doi.org/10.1214/aos/1176350142);
- requests within their cluster: clusters may differ in any way. This test sees a change while
  clusters go on, which the first does not, and nothing where clusters follow each other.

Given exchangeable requests the two are independent; Fisher's sum joins their p-values.

A changed mix of kinds of requests is no change: requests are compared by their residuals from the
mean of their kind, which is given by several factors, such as label and context length. A weighted
least-squares fit takes out the effect of each factor while the others are held equal (an analysis
of variance of unbalanced data: Yates 1934, https://doi.org/10.2307/2278126). Then the mean of each
cell, a combination of factors, is taken out of what is left; a cell of few clusters is pooled
upwards: the last factor is dropped, then the one before. So every factor counts, however few
requests share all of them.

Nor are the ends of a recording one. A recording that is read while the server runs ends in the
middle of requests, and `--since` begins in the middle of others. Means and trends over the rounds
near such an edge are biased: at the end the early rounds of an answer are too many, at the
beginning the rounds of long answers are. Therefore requests are chosen by when they began, which
does not depend on how they go on: not before the beginning, and not in the last stretch of the
recording, which is the time in which nearly all requests finish. That time is a quantile of the
durations by the product-limit estimate (Kaplan and Meier 1958, https://doi.org/10.2307/2281868).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Codes, Matrix, ranked
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import Ratio, intervals, ratio_of

ORDERS = 999
"""Number of random orders with which a split is compared; its p-value has a granularity of
0.001."""
LEAST = 10
"""Smallest number of clusters on either side of a split, and of clusters that go on across it. With
fewer, an interval over clusters is far too narrow."""
BLOCKS = 400
"""Number of blocks of neighbouring clusters; if there are more clusters, blocks are put in random
order."""
MOST_WITHIN = 4000
"""Number of requests that are put in random order within their clusters; of more, those of evenly
spread clusters."""
_AT_ONCE = 111
"""Number of random orders within clusters that are in memory together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSeries:
    """Requests in order of their start, [requests] each."""

    tokens: Matrix
    rounds: Matrix
    cluster: Codes
    uneven: bool = False
    """Whether clusters may scatter differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The largest difference over all splits."""

    at: int
    """Index of the first request after it."""
    p: float
    """Share of random orders with a difference at least as large."""


def largest_split(requests: RequestSeries, random: RandomState) -> Split | None:
    """Return the split at which the requests differ most; None if they are of too few clusters."""
    tests = [split for split in (_between(requests, random), _within(requests, random)) if split]
    if not tests:
        return None
    first = min(tests, key=lambda split: split.p)
    return Split(at=first.at, p=fisher([split.p for split in tests]))


def fisher(p: list[float]) -> float:
    """Return the p-value of one or two independent p-values together (Fisher 1925): of two, the
    probability that a product of uniform numbers is as small."""
    if len(p) == 1:
        return p[0]
    product = p[0] * p[1]
    return product * (1.0 - math.log(product))


def _between(requests: RequestSeries, random: RandomState) -> Split | None:
    """Test clusters in order of their first request."""
    _, first, code = np.unique(requests.cluster, return_index=True, return_inverse=True)
    if len(first) < 2 * LEAST:
        return None
    order = np.argsort(first, kind="stable")
    tokens = by_cluster(code, requests.tokens)[order]
    rounds = by_cluster(code, requests.rounds)[order]
    at = np.unique(np.linspace(0, len(tokens), BLOCKS + 1).astype(int))[:-1]
    least = max(1, LEAST * len(at) // len(tokens))
    blocks = np.add.reduceat(tokens, at), np.add.reduceat(rounds, at)
    null = _signs if requests.uneven else _orders
    shuffled = split_statistic(*null(*blocks, random), least).max(axis=1)
    p = _share(shuffled, float(split_statistic(*blocks, least).max()))
    return Split(at=int(first[order][split_statistic(tokens, rounds, LEAST).argmax()]), p=p)


def by_cluster(code: Codes, values: Matrix) -> Matrix:
    """Return the sum of `values` over the requests of each cluster, [clusters]."""
    return np.bincount(code, values).astype(np.float64)


def split_statistic(tokens: Matrix, rounds: Matrix, least: int) -> Matrix:
    """Return the difference between the items before each one and the rest, [..., n]; 0 within
    `least` of an end. Rounds are the weights, so it is the difference of two acceptance lengths
    over its standard error, up to a factor that all splits and orders share."""
    left, below = np.cumsum(tokens, axis=-1), np.cumsum(rounds, axis=-1)
    all_tokens, all_rounds = left[..., -1:], below[..., -1:]
    out = np.zeros_like(left)
    inner = slice(least - 1, left.shape[-1] - least)
    n, t = below[..., inner], left[..., inner]
    gap = np.abs(t / n - (all_tokens - t) / (all_rounds - n))
    out[..., inner.start + 1 : inner.stop + 1] = gap * np.sqrt(n * (all_rounds - n))
    return out


def _orders(tokens: Matrix, rounds: Matrix, random: RandomState) -> tuple[Matrix, Matrix]:
    orders = np.argsort(random.random_sample((ORDERS, len(tokens))), axis=1)
    return tokens[orders], rounds[orders]


def _signs(tokens: Matrix, rounds: Matrix, random: RandomState) -> tuple[Matrix, Matrix]:
    level = rounds * (tokens.sum() / rounds.sum())
    signs = random.choice([-1.0, 1.0], size=(ORDERS, len(tokens)))
    return level + signs * (tokens - level), np.broadcast_to(rounds, signs.shape)


def _within(requests: RequestSeries, random: RandomState) -> Split | None:
    """Test requests within the clusters that go on."""
    every = -(-len(requests.cluster) // MOST_WITHIN)
    kept = (
        np.flatnonzero(requests.cluster % every == 0)
        if every > 1
        else np.arange(len(requests.cluster))
    )
    cluster = np.unique(requests.cluster[kept], return_inverse=True)[1]
    residual = _from_cluster_mean(requests.tokens[kept], requests.rounds[kept], cluster)
    scale = _across(cluster)
    if residual is None or not scale.any():
        return None
    known = scale > 0
    weight = np.where(known, 1.0 / np.sqrt(np.where(known, scale, 1.0)), 0.0)
    real = np.abs(np.cumsum(residual)) * weight
    places = np.argsort(cluster, kind="stable")
    shuffled = np.empty(ORDERS)
    for begin in range(0, ORDERS, _AT_ONCE):
        draws = min(_AT_ONCE, ORDERS - begin)
        keys = cluster + random.random_sample((draws, len(cluster)))
        drawn = np.empty((draws, len(cluster)))
        drawn[:, places] = residual[np.argsort(keys, axis=1)]
        shuffled[begin : begin + draws] = (np.abs(np.cumsum(drawn, axis=1)) * weight).max(axis=1)
    at = int(kept[min(int(real.argmax()) + 1, len(kept) - 1)])
    return Split(at=at, p=_share(shuffled, float(real.max())))


def _from_cluster_mean(tokens: Matrix, rounds: Matrix, cluster: Codes) -> Matrix | None:
    """Return residuals from the mean of each cluster; None if no cluster has two requests."""
    if len(cluster) == int(cluster.max(initial=-1)) + 1:
        return None
    mean = np.bincount(cluster, tokens) / np.bincount(cluster, rounds)
    return np.asarray(tokens - rounds * mean[cluster])


def _across(cluster: Codes) -> Matrix:
    """Return, for a split after each request, the sum over clusters of the requests before times
    those after over all, which scales the variance; 0 where fewer than LEAST clusters go on."""
    size = np.bincount(cluster)[cluster].astype(np.float64)
    order = np.argsort(cluster, kind="stable")
    starts = np.searchsorted(cluster[order], np.arange(int(cluster.max(initial=-1)) + 1))
    nth = np.empty(len(cluster))
    nth[order] = np.arange(len(cluster)) - starts[cluster[order]]
    before, after = nth * (size - nth) / size, (nth + 1) * (size - nth - 1) / size
    going = np.cumsum(((nth == 0) & (size > 1)) * 1.0 - ((nth == size - 1) & (size > 1)) * 1.0)
    return np.where(going >= LEAST, np.cumsum(after - before), 0.0)


def _share(shuffled: Matrix, real: float) -> float:
    return float((1 + (shuffled >= real * (1 - _ROUNDING)).sum()) / (1 + ORDERS))


_ROUNDING = 1e-12
"""Rounding error of the same numbers added in another order."""


def step_ratio(tokens: Matrix, rounds: Matrix, cluster: Codes, after: Matrix) -> Ratio | None:
    """Return the difference of tokens per round between requests with `after` 1 and 0, with its
    jackknife influences over clusters, which may be on both sides; None if a side is empty."""
    code = np.unique(cluster, return_inverse=True)[1]
    sides = [
        ratio_of(*(by_cluster(code, column * side)[:, None] for column in (tokens, rounds)))
        for side in (1.0 - after, after)
    ]
    before, later = sides
    if not (before.units[0] > 0 and later.units[0] > 0):
        return None
    return later.minus(before)


def paired_step(
    tokens: Matrix, rounds: Matrix, prompt: Codes, after: Matrix
) -> tuple[float, Interval | None, int]:
    """Return how much more tokens per round the same prompts yield `after` than before, with its
    interval over prompts and their number; NaN and None with fewer than LEAST prompts on both
    sides. Prompts without a number have -1."""
    known = prompt >= 0
    code = np.unique(prompt[known], return_inverse=True)[1]
    sums = [
        np.bincount(code, column[known] * side[known])
        for side in (1.0 - after, after)
        for column in (tokens, rounds)
    ]
    both = (sums[1] > 0) & (sums[3] > 0)
    if both.sum() < LEAST:
        return math.nan, None, int(both.sum())
    before, n, later, m = (column[both] for column in sums)
    weight = n * m / (n + m)
    ratio = ratio_of((weight * (later / m - before / n))[:, None], weight[:, None])
    spread = intervals(ratio)
    return float(ratio.value[0]), spread[0] if spread else None, int(both.sum())


LEAST_STRETCH = 3
"""Fewest values of a stretch, and fewest outside of it."""
MOST_PLACES = 128
"""Number of places at which a stretch may begin or end; of more values, neighbours count as one."""
STRETCH_BY_CHANCE = 0.1
"""Share of random orders with a stretch as odd. To look at one in vain costs little; to miss one
makes a wrong answer (`make calibration`, table speed)."""
STRETCH_ORDERS = 199
"""Random orders with which the one of the values is compared."""
_STRETCH_SEED = 20_261_128


def odd_stretch(values: Matrix, by_chance: float = STRETCH_BY_CHANCE) -> slice | None:
    """Return the values in a row, of [values] in time, that differ most from those before and after
    them; None if they do not differ more than in a share `by_chance` of random orders.

    This is the epidemic alternative (Levin and Kline 1985), tested by permutation."""
    step = -(-len(values) // MOST_PLACES) if len(values) else 1
    blocks = [values[at : at + step].mean() for at in range(0, len(values), step)]
    n = len(blocks)
    if n < 3 * LEAST_STRETCH:
        return None
    begin, end = np.triu_indices(n + 1, LEAST_STRETCH)
    inside = end - begin
    fits = n - inside >= LEAST_STRETCH
    begin, end, inside = begin[fits], end[fits], inside[fits]
    weight = 1.0 / np.sqrt(inside * (n - inside) / n)

    def sizes(row: Matrix) -> Matrix:
        total = np.concatenate([[0.0], np.cumsum(row)])
        return np.asarray(np.abs(total[end] - total[begin]) * weight)

    z = np.array(blocks) - np.mean(blocks)
    found = sizes(z)
    random = np.random.RandomState(_STRETCH_SEED)
    as_odd = sum(sizes(random.permutation(z)).max() >= found.max() for _ in range(STRETCH_ORDERS))
    if found.max() <= 0 or (1 + as_odd) / (1 + STRETCH_ORDERS) > by_chance:
        return None
    # A stretch at one end, and all that is not in it, differ equally: the shorter one is odd.
    at = int(np.where(found > found.max() * (1.0 - _ROUNDING), inside, n).argmin())
    return slice(int(begin[at]) * step, int(end[at]) * step)


def autocorrelation(tokens: Matrix, rounds: Matrix) -> float:
    """Return the correlation of neighbouring requests' residuals, standardised by the rounds that
    they come from; 0 if nothing varies."""
    z = tokens / np.sqrt(np.where(rounds > 0, rounds, 1.0))
    z = z - z.mean()
    square = float((z * z).sum())
    return float((z[1:] * z[:-1]).sum()) / square if square > 0 else 0.0


LEAST_CLUSTERS = 10
"""Smallest number of clusters of a level of a factor, and of a cell: with fewer, its mean follows
its own requests so closely that little is left of a change among them."""
OTHER = "(other)"
"""Level of a factor that stands for all levels of few clusters."""


def residuals(
    tokens: Matrix, rounds: Matrix, cluster: Codes, factors: Sequence[NDArray[np.str_]]
) -> Matrix:
    """Return the tokens of each request minus what its kind yields in as many rounds, [requests].

    `factors`, [requests] each, begin with the one that is dropped last.
    """
    levels = [_levels(factor) for factor in factors]
    # The length of each request by the sum of the factors' effects, [requests].
    codes = [_merged(factor, cluster) for factor in levels]
    codes = [code for code in codes if code.max(initial=0) > 0]
    starts = np.cumsum([1, *(int(code.max()) + 1 for code in codes)])
    columns = [np.zeros(len(tokens), dtype=np.int64)]
    columns += [code + start for code, start in zip(codes, starts, strict=False)]
    size = int(starts[-1])
    normal, right = np.zeros(size * size), np.zeros(size)
    for one in columns:
        right += np.bincount(one, tokens, size)
        for other in columns:
            normal += np.bincount(one * size + other, rounds, size * size)
    effects = np.linalg.lstsq(normal.reshape(size, size), right, rcond=None)[0]
    left = tokens - rounds * np.asarray(sum(effects[column] for column in columns))
    cell = _cells(cluster, levels)
    kinds = int(cell.max(initial=-1)) + 1
    total, of = np.bincount(cell, left, kinds), np.bincount(cell, rounds, kinds)
    return np.asarray(left - rounds * np.asarray((total / np.where(of > 0, of, 1.0))[cell]))


_Levels = tuple[NDArray[np.str_], Codes]
"""Different levels of a factor, sorted, and the number of each request's level, [requests]."""


def _levels(factor: NDArray[np.str_]) -> _Levels:
    names, code = np.unique(factor, return_inverse=True)
    return names, code.astype(np.int64)


def _merged(factor: _Levels, cluster: Codes) -> Codes:
    """Return the number of each request's level, [requests], with levels of few clusters as one."""
    names, code = factor
    few = _clusters_in(code, cluster) < LEAST_CLUSTERS
    return _levels(np.where(few, OTHER, names))[1][code]


def cells(cluster: Codes, factors: Sequence[NDArray[np.str_]]) -> Codes:
    """Return the cell of each request, [requests]: the finest combination of leading factors that
    has LEAST_CLUSTERS clusters among the requests that no finer one has taken."""
    return _cells(cluster, [_levels(factor) for factor in factors])


def _cells(cluster: Codes, factors: Sequence[_Levels]) -> Codes:
    out = np.full(len(cluster), -1, dtype=np.int64)
    offset = 0
    for used in range(len(factors), 0, -1):
        left = np.flatnonzero(out < 0)
        code = _codes([code[left] for _, code in factors[:used]], len(left))
        large = _clusters_in(code, cluster[left]) >= LEAST_CLUSTERS
        large_code = large[code]
        out[left[large_code]] = offset + code[large_code]
        offset += len(large)
    out[out < 0] = offset
    return ranked(out)[1]


def _codes(factors: Sequence[Codes], n: int) -> Codes:
    """Return a number for each combination of levels, [n]."""
    code = np.zeros(n, dtype=np.int64)
    for factor in factors:
        codes_met, own = ranked(factor)
        code = ranked(code * max(len(codes_met), 1) + own)[1]
    return code


def _clusters_in(code: Codes, cluster: Codes) -> Codes:
    """Return the number of different clusters of each code, [codes]."""
    clusters = int(cluster.max(initial=0)) + 1
    of = np.unique(code * clusters + cluster) // clusters
    return np.bincount(of, minlength=int(code.max(initial=-1)) + 1)


FINISHED_BY = 0.95
"""Share of requests that must finish within the stretch that is left out at the end: of the others,
at most one in twenty is cut off, and only behind most of its rounds."""
ENOUGH_LEFT = 0.5
"""Share of the rounds that must be left: with fewer, a trend over the recording is one over a part
of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lifetimes:
    """Decoding of each request of a recording, arrays of [requests] each."""

    start_s: Matrix
    """Time of the first decode step, before the beginning of a cut as well."""
    last_s: Matrix
    """Time of the last recorded decode step."""
    end_s: Matrix
    """Time at which the recording of the request's server ends."""
    ended: NDArray[np.bool_]
    """Whether the end of the request was recorded, whatever its reason."""
    rounds: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """Requests whose rounds means and trends use."""

    kept: NDArray[np.bool_]
    """Whether each request is used, [requests]; all of them if too little would be left."""
    early: NDArray[np.bool_]
    """Whether each request began before the beginning of the cut."""
    late: NDArray[np.bool_]
    """Whether each request began too late to be seen whole."""
    duration_s: float | None
    """Time within which FINISHED_BY of the requests finish decoding; None if every request
    finished, or if too few did to know it."""
    enough: bool
    """Whether ENOUGH_LEFT of the rounds belong to the other requests. If not, means and trends of
    the recording cannot be told."""


def selection_of(lives: Lifetimes, begin_s: float = -math.inf) -> Selection:
    """Return the requests to use of a recording that was cut at `begin_s`."""
    early = lives.start_s < begin_s
    duration_s, late = None, np.zeros(len(early), dtype=np.bool_)
    if not lives.ended.all():
        seen_s = np.where(lives.ended, lives.last_s, lives.end_s) - lives.start_s
        duration_s = duration_quantile(seen_s, lives.ended, FINISHED_BY)
        within = math.inf if duration_s is None else duration_s
        late = np.asarray(lives.start_s >= lives.end_s - within)
    kept = ~(early | late)
    enough = bool(lives.rounds[kept].sum() >= ENOUGH_LEFT * lives.rounds.sum())
    return Selection(
        kept=kept if enough else np.ones(len(kept), dtype=np.bool_),
        early=early,
        late=late & ~early,
        duration_s=duration_s,
        enough=enough,
    )


def duration_quantile(seen_s: Matrix, ended: NDArray[np.bool_], share: float) -> float | None:
    """Return the time within which `share` of the requests end, from the time that each was seen
    and whether it `ended` then; None if the longest ones are all still running."""
    if not ended.any():
        return None
    from scipy.stats import CensoredData, ecdf

    survival = ecdf(CensoredData(uncensored=seen_s[ended], right=seen_s[~ended])).sf
    below = np.flatnonzero(survival.probabilities <= 1 - share + _SHARE_ROUNDING)
    return float(survival.quantiles[below[0]]) if len(below) else None


_SHARE_ROUNDING = 1e-9
"""Rounding error of a product of shares."""
