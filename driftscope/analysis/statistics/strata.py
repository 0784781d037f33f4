"""Comparison of groups of rounds within strata, so that one circumstance is not blamed for another.

Labels often differ in context length. Long contexts then look bad because of a label, and the label
because of long contexts. Long contexts also come late in an answer, where acceptance may differ in
contexts of any length. Here each comparison is made inside the strata of the other circumstance,
and the strata are combined with the weights of Mantel and Haenszel (1959), n m / (n + m) for n and
m rounds of the two groups in a stratum: a stratum that only one of them has contributes nothing,
and its weight is 0. Two kinds of rounds that one request has are compared inside each request.

The variance is that of the jackknife over clusters of requests, weights included; a cluster that
has rounds in both groups is left out of both at once.

An `association` is the linear relation of an outcome to a measure within strata. The outcome y is 0
or 1, a stratum is one request at one depth. Strata take out everything that is equal in a request:
its prompt, label, sampling, length. The model is the linear probability model

    y = stratum + b x + covariates' g + error,

fitted on deviations from the strata's means (Wooldridge 2010, 10.5). Strata whose outcome is
constant count as well: leaving them out would select on the outcome, and inflate b (as it does not
in a conditional logit, whose b is no difference of rates). The error of b is the
jackknife over clusters (Cameron and Miller 2015, CV3), in closed form from each cluster's sums of
products, and its quantile Student's, with the degrees of freedom that clusters of unequal leverage
leave. With few clusters a sign-flip test on the clusters' scores has to agree (the restricted wild
cluster bootstrap of Cameron, Gelbach and Miller 2008, on the partialled-out scores)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Codes, Matrix, ranked, rows_of
from driftscope.analysis.statistics.intervals import (
    Array,
    Interval,
    degrees_of_freedom,
    exact_interval,
    student,
    two_sided,
)
from driftscope.analysis.statistics.permutation import ALPHA
from driftscope.analysis.statistics.ratio import (
    FEWEST_CLUSTERS,
    MOST_WEIGHT,
    Ratio,
    intervals,
    ratio_of,
    ratio_over,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Acceptance of the second group compared with the first, over the strata that both have.

    A stratum is one value of the other circumstance: a workload label if ranges of context lengths
    are compared, a range of context lengths if labels are.
    """

    first: str
    """Name of the group with which the other one is compared."""
    second: str
    first_length: float
    """Acceptance length of the first group; each stratum has the same weight in both groups."""
    second_length: float
    kept: float
    """Accepted tokens per round of the second group over those of the first."""
    kept_interval: Interval | None
    p: float | None
    """Two-sided p-value for `kept` being 1; None if it cannot be tested."""
    requests: int
    """Number of requests in the shared strata, of the group that has fewer."""
    strata: tuple[str, ...]
    """Names of the strata that both groups have."""

    def loses(self, bound: float, *, tests: int = 1) -> bool:
        """Whether less than `bound` of the accepted tokens is kept, and surely less than all of
        them, as one of several `tests` (Bonferroni)."""
        return self.kept < bound and self.p is not None and self.p < ALPHA / tests


def nothing_kept(
    rounds: int, first: float, *, supported: bool
) -> tuple[Interval | None, float | None]:
    """Return interval and p-value of `kept` if the second group accepts nothing in `rounds` rounds,
    and the first one `first` tokens per round. No request differs from another then, and the share
    of rounds that accept anything has an exact interval."""
    high = exact_interval(0, rounds).high / first
    return (Interval.between(0.0, high), 0.0) if supported and high < 1 else (None, None)


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
    """Index into the names of ranges, shortest first; a request has at most one cell in each."""
    tokens: Matrix
    """Output tokens of the rounds, comparable between groups."""
    rounds: Matrix
    place: Codes | None = None
    """Range of the place in the answer; None: all are equal."""


def context_within_label(
    cells: Cells, contexts: Sequence[str], labels: Sequence[str]
) -> Contrast | None:
    """Compare the longest contexts with the shortest ones under the same labels and at the same
    places in the answer, using the two ranges furthest apart that share enough requests. None if no
    two do."""
    place = np.zeros_like(cells.label) if cells.place is None else cells.place
    places = int(place.max(initial=0)) + 1
    stratum = cells.label * places + place
    names = [label for label in labels for _ in range(places)]
    requests = _requests(stratum, cells.context, len(names), len(contexts))
    pairs = [
        (long - short, enough, short, long)
        for short, long in combinations(range(len(contexts)), 2)
        if (enough := _shared(requests[:, short], requests[:, long])) >= ENOUGH_REQUESTS
    ]
    if not pairs:
        return None
    _, _, short, long = max(pairs)
    return _contrast(cells, cells.context, (short, long), stratum, contexts, names)


def labels_within_context(
    cells: Cells, contexts: Sequence[str], labels: Sequence[str]
) -> tuple[Contrast, ...]:
    """Compare every two labels in the same ranges of context lengths, the one that accepts more
    first; pairs that share too few requests are left out."""
    requests = _requests(cells.context, cells.label, len(contexts), len(labels))
    rounds = np.bincount(cells.label, cells.rounds, len(labels))
    most = sorted(np.argsort(-rounds, kind="stable")[:MOST_GROUPS].tolist())
    return tuple(_labels_in_pairs(cells, requests, most, contexts, labels))


def _labels_in_pairs(
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
    requests = _requests(stratum, group, len(strata), len(groups))[:, pair]
    shared = np.flatnonzero((requests >= FEWEST).all(axis=1))
    shared = shared[np.argsort(-requests[shared].min(axis=1), kind="stable")][:MOST_STRATA]
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
        requests=int(requests[shared].sum(axis=0).min()),
        strata=tuple(dict.fromkeys(strata[stratum] for stratum in np.sort(shared))),
    )


def _tested(sums: _Sums, kept: float) -> tuple[Interval | None, float | None]:
    """Return the 95% interval of the share kept, and the p-value for all being kept."""
    error, df = sums.error(), sums.df()
    half = float(student(df)) * error
    if not sums.supported() or not np.isfinite(half) or not error > 0:
        return None, None
    p = float(two_sided(np.array((kept - 1.0) / error), np.array(df)))
    return Interval.between(max(kept - half, 0.0), kept + half, df + 1.0), p


class _Sums:
    """Tokens and rounds of two groups by request and shared stratum."""

    def __init__(
        self, cells: Cells, group: Codes, pair: tuple[int, int], stratum: Codes, shared: Codes
    ) -> None:
        place = np.full(int(stratum.max(initial=0)) + 1, -1)
        place[shared] = np.arange(len(shared))
        in_pair = np.isin(group, pair) & (place[stratum] >= 0)
        _, request = np.unique(cells.request[in_pair], return_inverse=True)
        size = (2, int(request.max(initial=-1)) + 1, len(shared))
        at = ((group[in_pair] == pair[1]).astype(np.int64), request, place[stratum[in_pair]])
        self._accepted, self._rounds = np.zeros(size), np.zeros(size)
        np.add.at(self._accepted, at, (cells.tokens - cells.rounds)[in_pair])
        np.add.at(self._rounds, at, cells.rounds[in_pair])

    def accepted(self) -> Matrix:
        """Return the accepted tokens per round of both groups, standardised, [2]."""
        return _standardised(self._accepted.sum(axis=1), self._rounds.sum(axis=1))

    def error(self) -> float:
        """Return the standard error of the second over the first, by leaving out one request after
        another."""
        whole = [column.sum(axis=1, keepdims=True) for column in (self._accepted, self._rounds)]
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
        return float(np.min([degrees_of_freedom(share[:, None])[0] for share in self._shares()]))

    def supported(self) -> bool:
        """Whether there are enough clusters, and none has more than half of the weight of a
        group."""
        return self.df() + 1.0 >= FEWEST_CLUSTERS and all(
            share.max(initial=0.0) <= MOST_WEIGHT for share in self._shares()
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
    rates = accepted / np.where(rounds > 0, rounds, 1.0)
    whole = weight.sum(axis=-1)
    return np.asarray((weight * rates).sum(axis=-1) / np.where(whole > 0, whole, np.nan))


EACH_REQUEST = "each request"
"""Name of the strata of such a comparison."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halves:
    """Rounds of two kinds by request and stratum, [rows, 2] or [rows]."""

    accepted: Matrix
    """Accepted tokens of the first and the second kind, comparable between kinds, [rows, 2]."""
    rounds: Matrix
    """Rounds of both kinds, [rows, 2]."""
    request: Codes
    cluster: Codes
    crossed: Codes | None = None
    """Other cluster of each row, if clusters are of two kinds."""


def within_requests(halves: Halves, first: str, second: str) -> Contrast | None:
    """Compare the second kind with the first inside each request; None if no request has both, or
    if the first kind accepts nothing."""
    both = (halves.rounds > 0).all(axis=1)
    rounds, accepted = halves.rounds[both], halves.accepted[both]
    share = rounds[:, ::-1] / rounds.sum(axis=1, keepdims=True)
    weighted = share * accepted
    if not both.any() or not weighted[:, 0].sum() > 0:
        return None
    weight = float((share[:, 0] * rounds[:, 0]).sum())
    ratio = ratio_over(
        ratio_of,
        [weighted[:, [1]], weighted[:, [0]]],
        halves.cluster[both],
        None if halves.crossed is None else halves.crossed[both],
    )
    accepted_of_first = float(weighted[:, 0].sum()) / weight
    kept = float(ratio.value[0])
    interval, p = (
        _tested_within(ratio)
        if kept
        else nothing_kept(
            int(rounds[:, 1].sum()), accepted_of_first, supported=bool(ratio.supported[0])
        )
    )
    return Contrast(
        first=first,
        second=second,
        first_length=1.0 + accepted_of_first,
        second_length=1.0 + float(weighted[:, 1].sum()) / weight,
        kept=kept,
        kept_interval=interval,
        p=p,
        requests=len(np.unique(halves.request[both])),
        strata=(EACH_REQUEST,),
    )


def _tested_within(ratio: Ratio) -> tuple[Interval | None, float | None]:
    """Return the 95% interval of the share kept, and the p-value for all being kept."""
    spread, error = intervals(ratio), float(ratio.error[0])
    if spread is None or spread[0] is None or not error > 0:
        return None, None
    p = two_sided(np.array((float(ratio.value[0]) - 1.0) / error), ratio.df[0])
    return spread[0].within(0.0, np.inf), float(p)


FEWEST_RELATED = 10
"""Smallest number of clusters for an estimate."""
FEWEST_ROWS = 200
"""Smallest number of rows in strata in which both the measure and the outcome vary."""
MANY_CLUSTERS = 30
"""Number of clusters from which on Student's quantile needs no second test."""
FLIPS = 999
"""Number of random signs of the scores."""
SEED = 20261124
MARGIN = 0.02
"""Equivalence margin: a change of the outcome by less than this, for one standard deviation of the
measure, counts as none. driftscope's own bound."""


class AssociationAnswer(StrEnum):
    """Answer to whether the outcome goes with the measure."""

    LESS = "less"
    """The outcome is less frequent where the measure is larger."""
    MORE = "more"
    NO = "no"
    """A relation as large as MARGIN is excluded."""
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """Relation of the outcome to one standard deviation of the measure within strata."""

    per_sd: float
    """Change of the outcome's frequency."""
    interval: Interval
    """95% interval of `per_sd`."""
    sd: float
    """Standard deviation of the measure within strata, in the measure's unit."""
    rows: int
    """Rows in strata in which the measure varies."""
    clusters: int
    p: float
    """p-value of no relation; the larger one of two with few clusters."""

    def answer(self, adjusted_p: float | None = None) -> AssociationAnswer:
        """Return the answer; `adjusted_p` replaces `p` if several questions are asked together."""
        p = self.p if adjusted_p is None else adjusted_p
        if p < ALPHA and self.interval.excludes_zero():
            return AssociationAnswer.LESS if self.per_sd < 0 else AssociationAnswer.MORE
        if self.interval.low > -MARGIN and self.interval.high < MARGIN:
            return AssociationAnswer.NO
        return AssociationAnswer.CANNOT_TELL

    @property
    def wanted_clusters(self) -> int:
        """Number of clusters with which the interval would be about as wide as MARGIN."""
        half = (self.interval.high - self.interval.low) / 2
        return int(np.ceil(self.clusters * max((half / MARGIN) ** 2, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of the regression, arrays of [rows] each."""

    cluster: Codes
    stratum: Codes
    y: Array
    """Outcome, 0 or 1."""
    x: Array
    """Measure; NaN leaves a row out."""
    covariates: Array
    """Other variables, [rows, m]."""


def association(rows: Rows, *, least_sd: float = 0.0) -> Association | None:
    """Return the relation of `y` to `x`; None if there are too few rows or clusters in which both
    vary, or if the measure varies by no more than `least_sd`."""
    both = _varies(rows, rows.x) & _varies(rows, rows.y)
    if len(np.unique(rows.cluster[both])) < FEWEST_RELATED or both.sum() < FEWEST_ROWS:
        return None
    kept = _varies(rows, rows.x)
    rows = rows_of(rows, kept)
    clusters, cluster = ranked(rows.cluster)
    # Values less the mean of their stratum, [rows, m].
    values = np.column_stack([rows.x, rows.covariates, rows.y])
    _, code = ranked(rows.stratum)
    size = np.bincount(code).astype(np.float64)
    within = np.empty_like(values)
    for at in range(values.shape[1]):
        mean = np.bincount(code, weights=values[:, at]) / size
        within[:, at] = values[:, at] - mean[code]
    freedom = len(within) - len(np.unique(rows.stratum))
    sd = float(np.sqrt(np.square(within[:, 0]).sum() / max(freedom, 1)))
    if not sd > least_sd:
        return None
    x, others, y = within[:, 0] / sd, within[:, 1:-1], within[:, -1]
    x, y = _residual(x, others), _residual(y, others)
    squares = np.bincount(cluster, weights=x * x, minlength=len(clusters))
    products = np.bincount(cluster, weights=x * y, minlength=len(clusters))
    share = squares / squares.sum()
    if share.max() > 0.5:
        return None
    estimate = float(products.sum() / squares.sum())
    without = (products.sum() - products) / (squares.sum() - squares)
    n = len(clusters)
    error = float(np.sqrt((n - 1) / n * np.square(without - estimate).sum()))
    df = 1.0 / float(np.square(share).sum()) - 1.0
    half = float(student(df)) * error
    interval = Interval.between(estimate - half, estimate + half)
    if interval is None or not error:
        return None
    p = float(two_sided(np.array([estimate / error]), np.array([df]))[0])
    if n < MANY_CLUSTERS:
        scores = products.astype(np.float64)
        # Share of random signs under which the clusters' scores add up to as much.
        signs = np.random.RandomState(SEED).choice((-1.0, 1.0), size=(FLIPS, len(scores)))
        more = np.abs(signs @ scores) >= abs(scores.sum()) * (1 - 1e-12)
        p = max(p, float((1 + more.sum()) / (1 + FLIPS)))
    return Association(per_sd=estimate, interval=interval, sd=sd, rows=len(rows.y), clusters=n, p=p)


def _varies(rows: Rows, values: Array) -> NDArray[np.bool_]:
    """Return the rows with finite numbers, of strata in which `values` vary among these."""
    known = np.isfinite(rows.x) & np.isfinite(rows.covariates).all(axis=1)
    _, stratum = ranked(rows.stratum)
    n = int(stratum.max(initial=-1)) + 1
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, stratum[known], values[known])
    np.maximum.at(high, stratum[known], values[known])
    return np.asarray(known & (high > low)[stratum])


def _residual(values: Array, others: Array) -> Array:
    """Return what is left of `values` after a least-squares fit of `others`."""
    if not others.shape[1]:
        return values
    fit, *_ = np.linalg.lstsq(others, values, rcond=None)
    return np.asarray(values - others @ fit)
