"""Comparison of groups of rounds within strata, so that one circumstance is not blamed for another.

Labels often differ in context length. Long contexts then look bad because of a label, and the label
because of long contexts. Here each comparison is made inside the strata of the other circumstance,
and the strata are combined with the weights of Mantel and Haenszel (1959), n m / (n + m) for n and
m rounds of the two groups in a stratum: a stratum that only one of them has contributes nothing,
and its weight is 0.

The variance is that of the jackknife over clusters of requests, weights included; a cluster that
has rounds in both groups is left out of both at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from driftscope.analysis.query.column_arrays import Codes, Matrix
from driftscope.analysis.statistics.contrast import Contrast, nothing_kept
from driftscope.analysis.statistics.intervals.cluster_ratio import FEWEST_CLUSTERS, MOST_WEIGHT
from driftscope.analysis.statistics.intervals.degrees_of_freedom import (
    degrees_of_freedom,
    student,
    two_sided,
)
from driftscope.analysis.statistics.intervals.interval import Interval

ENOUGH_REQUESTS = 10
"""Smallest number of requests of a group that is compared with another: with fewer, intervals are
far too narrow."""
FEWEST = 2
"""Smallest number of requests of both groups in a stratum: a single one shows no spread."""
MOST_STRATA = 64
MOST_GROUPS = 12
"""Largest number of labels that are compared in pairs: those with the most rounds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """Rounds by request, range of context lengths and label, arrays of [cells] each."""

    request: Codes
    """Cluster of the request, from 0: the unit of the variance."""
    label: Codes
    """Index into the names of labels."""
    context: Codes
    """Index into the names of ranges, shortest first."""
    tokens: Matrix
    """Output tokens of the rounds, comparable between groups."""
    rounds: Matrix


def context_within_label(
    cells: Cells, contexts: Sequence[str], labels: Sequence[str]
) -> Contrast | None:
    """Compare the longest contexts with the shortest ones under the same labels, using the two
    ranges furthest apart that share enough requests. None if no two do."""
    there = _requests(cells.label, cells.context, len(labels), len(contexts))
    pairs = [
        (long - short, enough, short, long)
        for short, long in combinations(range(len(contexts)), 2)
        if (enough := _shared(there[:, short], there[:, long])) >= ENOUGH_REQUESTS
    ]
    if not pairs:
        return None
    _, _, short, long = max(pairs)
    return _contrast(cells, cells.context, (short, long), cells.label, contexts, labels)


def labels_within_context(
    cells: Cells, contexts: Sequence[str], labels: Sequence[str]
) -> tuple[Contrast, ...]:
    """Compare every two labels in the same ranges of context lengths, the one that accepts more
    first; pairs that share too few requests are left out."""
    there = _requests(cells.context, cells.label, len(contexts), len(labels))
    rounds = np.bincount(cells.label, cells.rounds, len(labels))
    most = sorted(np.argsort(-rounds, kind="stable")[:MOST_GROUPS].tolist())
    return tuple(_each(cells, there, most, contexts, labels))


def _each(
    cells: Cells, there: Codes, most: Sequence[int], contexts: Sequence[str], labels: Sequence[str]
) -> Iterator[Contrast]:
    for a, b in combinations(most, 2):
        if _shared(there[:, a], there[:, b]) < ENOUGH_REQUESTS:
            continue
        for pair in ((a, b), (b, a)):
            contrast = _contrast(cells, cells.label, pair, cells.context, labels, contexts)
            if contrast is not None and contrast.first_length >= contrast.second_length:
                yield contrast
                break


def _requests(stratum: Codes, group: Codes, strata: int, groups: int) -> Codes:
    """Return the requests with a round in each stratum and group, [strata, groups]: a request has
    at most one cell in each."""
    return np.bincount(stratum * groups + group, minlength=strata * groups).reshape(strata, groups)


def _shared(first: Codes, second: Codes) -> int:
    """Return the number of requests of the group that has fewer, in the strata that both have."""
    both = (first >= FEWEST) & (second >= FEWEST)
    return int(min(first[both].sum(), second[both].sum()))


def _contrast(
    cells: Cells,
    group: Codes,
    pair: tuple[int, int],
    stratum: Codes,
    groups: Sequence[str],
    strata: Sequence[str],
) -> Contrast | None:
    """Compare two groups; None if the first accepts nothing."""
    there = _requests(stratum, group, len(strata), len(groups))[:, pair]
    shared = np.flatnonzero((there >= FEWEST).all(axis=1))
    shared = shared[np.argsort(-there[shared].min(axis=1), kind="stable")][:MOST_STRATA]
    sums = _Sums(cells, group, pair, stratum, np.sort(shared))
    first, second = sums.accepted()
    if not first > 0:
        return None
    kept = float(second / first)
    interval, p = (
        _tested(sums, kept)
        if kept
        else nothing_kept(sums.rounds(1), float(first), supported=sums.supported())
    )
    return Contrast(
        first=groups[pair[0]],
        second=groups[pair[1]],
        first_length=1.0 + float(first),
        second_length=1.0 + float(second),
        kept=kept,
        kept_interval=interval,
        p=p,
        requests=int(there[shared].sum(axis=0).min()),
        strata=tuple(strata[each] for each in np.sort(shared)),
    )


def _tested(sums: _Sums, kept: float) -> tuple[Interval | None, float | None]:
    """Return the 95% interval of the share kept, and the p-value for all being kept."""
    error, df = sums.error(), sums.df()
    half = float(student(df)) * error
    if not sums.supported() or not np.isfinite(half) or not error > 0:
        return None, None
    p = float(two_sided(np.array((kept - 1.0) / error), np.array(df)))
    return Interval.of(max(kept - half, 0.0), kept + half, df + 1.0), p


class _Sums:
    """Tokens and rounds of two groups by request and shared stratum."""

    def __init__(
        self, cells: Cells, group: Codes, pair: tuple[int, int], stratum: Codes, shared: Codes
    ) -> None:
        place = np.full(int(stratum.max(initial=0)) + 1, -1)
        place[shared] = np.arange(len(shared))
        mine = np.isin(group, pair) & (place[stratum] >= 0)
        _, request = np.unique(cells.request[mine], return_inverse=True)
        size = (2, int(request.max(initial=-1)) + 1, len(shared))
        at = ((group[mine] == pair[1]).astype(np.int64), request, place[stratum[mine]])
        self._accepted, self._rounds = np.zeros(size), np.zeros(size)
        np.add.at(self._accepted, at, (cells.tokens - cells.rounds)[mine])
        np.add.at(self._rounds, at, cells.rounds[mine])

    def accepted(self) -> Matrix:
        """Return the accepted tokens per round of both groups, standardised, [2]."""
        return _standardised(self._accepted.sum(axis=1), self._rounds.sum(axis=1))

    def error(self) -> float:
        """Return the standard error of the second over the first, by leaving out one request after
        another."""
        whole = [each.sum(axis=1, keepdims=True) for each in (self._accepted, self._rounds)]
        first, second = _standardised(whole[0] - self._accepted, whole[1] - self._rounds)
        known = first > 0
        kept = second[known] / first[known]
        n = len(first)
        if known.sum() < n or n < 2:
            return np.nan
        value = self.accepted()
        return float(np.sqrt((n - 1) / n * np.square(kept - value[1] / value[0]).sum()))

    def df(self) -> float:
        """Return the degrees of freedom of the group that has fewer."""
        return float(np.min([degrees_of_freedom(each[:, None])[0] for each in self._shares()]))

    def supported(self) -> bool:
        """Whether there are enough clusters, and none has more than half of the weight of a
        group."""
        return self.df() + 1.0 >= FEWEST_CLUSTERS and all(
            each.max(initial=0.0) <= MOST_WEIGHT for each in self._shares()
        )

    def rounds(self, group: int) -> int:
        """Return the number of rounds of the first or second group."""
        return int(self._rounds[group].sum())

    def _shares(self) -> Matrix:
        """Return each request's share of the weight of its group, [2, requests]."""
        rounds = self._rounds.sum(axis=1)
        weight = _weights(rounds)
        return np.asarray((self._rounds * (weight / rounds)[:, None]).sum(axis=2) / weight.sum())


def _weights(rounds: Matrix) -> Matrix:
    """Return the weights of Mantel and Haenszel, [..., strata], for rounds [2, ..., strata]; 0
    where a group has none."""
    together = rounds[0] + rounds[1]
    return np.asarray(rounds[0] * rounds[1] / np.where(together > 0, together, 1.0))


def _standardised(accepted: Matrix, rounds: Matrix) -> Matrix:
    """Return accepted tokens per round, [2, ...], with the same weight of each stratum, the last
    axis, in both groups."""
    weight = _weights(rounds)
    each = accepted / np.where(rounds > 0, rounds, 1.0)
    whole = weight.sum(axis=-1)
    return np.asarray((weight * each).sum(axis=-1) / np.where(whole > 0, whole, np.nan))
