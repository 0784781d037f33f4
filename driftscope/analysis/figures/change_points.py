"""Change points of acceptance: times before and after which requests accept differently.

The method is binary segmentation over requests in order of their start. What is compared is each
request's residual from the mean of its kind (`driftscope.analysis.statistics.changes`), so
that a changed mix of requests is no change. A split is accepted if the largest difference over all
splits is larger than in almost all random orders of the same clusters of requests
(`driftscope.analysis.statistics.changes`). So neither rounds of a request nor requests of a
session count as independent of each other, and a run that does not change is split in at most ALPHA
of cases (`make calibration`). Each level of further splits is tested at a share of ALPHA, so that
all tests of one level together keep to it.

A cluster is a unit of `driftscope.analysis.figures.requests`. Unless it is a session or a
conversation, requests that follow each other may be alike without any change of the drafter. If
they are, beside a slope, a step, or two, the run cannot tell traffic from the drafter: see
`Changes.neighbours_alike`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.query_engine import Codes, Matrix, rows_of, whole
from driftscope.analysis.statistics.changes import (
    LEAST,
    RequestSeries,
    Split,
    autocorrelation,
    by_cluster,
    largest_split,
    paired_step,
    residuals,
    split_statistic,
    step_ratio,
)
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import intervals, ratio_intervals

ALPHA = 0.05
"""Share of runs without a change that may be split."""
DEPTH = 3
"""Number of levels of splits: at most 7 change points, the last of them tested at ALPHA / 4."""
MOST_ALIKE = 2.0
"""Autocorrelation of neighbouring requests, times the root of their number, above which they are
called alike: the upper end of a 95% interval around none (Bartlett 1946)."""
SEED = 20260511
CONTEXT = "context"
KINDS = ("label", CONTEXT, "structured", "temperature", "batch")
"""Properties that make the kind of a request, in the order of `Series`."""
POWERS = (CONTEXT, "batch")
"""Those whose value is a power of two."""
PROMPT = "prompt"
LEAST_PART = 0.25
"""Smallest part of a fall that a kind of request must explain to be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLevel:
    """Requests between two changes of acceptance; a run without a change is one level."""

    start_s: float
    """Unix time at which its first request starts to decode."""
    end_s: float
    """Unix time at which the first later request starts to decode; for the last level, the end of
    the run."""
    requests: int
    rounds: int
    mean_length: float
    interval: Interval | None
    """95% interval over clusters; it is not widened for the search that found the level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomers:
    """Requests of one kind that make up more of the rounds after a change, and accept less."""

    kind: str
    """One of KINDS, or PROMPT for prompts that were not sent before the change."""
    value: str
    """Label, temperature, structure, or exponent of two; "" for new prompts."""
    share_before: float
    """Share of the rounds before the change."""
    share_after: float
    mean_length: float
    """Accepted tokens and the target's own per round, after the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A change point: acceptance differs before and after it."""

    time_s: float
    """Unix time at which the first request after the change starts to decode."""
    before: float
    """Acceptance length of the level before the change."""
    after: float
    difference: float
    """Acceptance length after minus before."""
    interval: Interval | None
    """95% interval of the difference, not widened either, see `AcceptanceLevel`."""
    same_mix: float | None
    """Difference with the share of each workload label fixed at that of both levels together; None
    if no label has requests on both sides. Near 0, the mix of requests changed, not the drafter's
    acceptance of them."""
    p: float
    """Share of random orders in which the largest difference of any split is at least as large."""
    adjusted: float | None = None
    """Difference of the residuals from the mean of each kind of request; None if a
    side is empty."""
    adjusted_interval: Interval | None = None
    anchored: float | None = None
    """Difference between the same prompts after and before; None with fewer than LEAST prompts on
    both sides."""
    anchored_interval: Interval | None = None
    prompts: int = 0
    """Number of prompts that were answered both before and after."""
    going_on: float | None = None
    """Difference, of the same residuals, between the same sessions after and before; None with
    fewer than LEAST sessions that go on across the change."""
    going_on_interval: Interval | None = None
    sessions: int = 0
    """Number of sessions that go on across the change."""
    overlap: float = 1.0
    """Share of the rounds that are of the same kind before and after, by the property whose kinds
    differ most; near 0, nothing tells the kind of request from the time."""
    newcomers: tuple[Newcomers, ...] = ()
    """Kinds of request whose larger share explains at least LEAST_PART of a fall, the largest part
    first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a run's acceptance over time; there is one more level than there are points."""

    requests: int
    """Number of requests with a round."""
    points: tuple[ChangePoint, ...]
    """Change points in order of time; empty if no change was found."""
    levels: tuple[AcceptanceLevel, ...]
    gradual: bool | None
    """Whether a straight line over time fits the requests better than one step, so that the points
    stand for a slope; None without a point."""
    clusters: int = 0
    """Number of clusters of these requests."""
    keyed: bool = False
    """Whether the recording says which requests belong together."""
    autocorrelation: float | None = None
    """Correlation of neighbouring requests beside a slope, a step, or two; None if it is not
    known."""
    raw: ChangePoint | None = None
    """Largest change if every request is one of its own and the mix of requests may be anything;
    None if there is none."""
    by_label: Mapping[str, Changes] = field(default_factory=dict)
    """Changes among the requests of each label alone, if there are several labels of enough
    requests: opposite movements cancel in the whole run."""

    @property
    def neighbours_alike(self) -> bool:
        """Whether neighbouring requests are alike although the recording does not say which belong
        together: then nothing tells sessions or traffic from the drafter."""
        if self.keyed or self.autocorrelation is None:
            return False
        return self.autocorrelation > MOST_ALIKE / math.sqrt(self.requests)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Requests in order of their start, arrays of [requests] each."""

    start_s: Matrix
    end_s: float
    """Unix time of the end of the run."""
    tokens: Matrix
    """Tokens of all rounds, both accepted and the target's own, minus what the request's own mix of
    K adds."""
    rounds: Matrix
    labels: NDArray[np.str_]
    factors: tuple[NDArray[np.str_], ...] = ()
    """Further properties that make the kind of a request, the most important first."""
    cluster: Codes | None = None
    """Session or conversation of each request; None if the recording does not know them."""
    prompt: Codes | None = None
    """Number of each request's prompt, equal for equal prompts, -1 if it is not known; None if no
    prompt is known to repeat."""
    keyed: bool = True
    """Whether `cluster`, if known, is by session or conversation; otherwise it is by prompt."""
    several_k: bool = False
    """Whether requests may scatter differently, because they drafted with different K."""

    @property
    def clusters(self) -> Codes:
        """Cluster of each request: the request itself if nothing else is known."""
        return np.arange(len(self.tokens)) if self.cluster is None else self.cluster

    def where(self, mine: NDArray[np.bool_]) -> Series:
        """Return the requests that `mine` selects."""
        factors = tuple(factor[mine] for factor in self.factors)
        return replace(rows_of(self, mine), factors=factors)

    def adjusted(self) -> Matrix:
        """Return the tokens that the requests would have if all were of the run's mean kind."""
        kinds = (self.labels, *self.factors)
        left = residuals(self.tokens, self.rounds, self.clusters, kinds)
        return np.asarray(left + self.rounds * (self.tokens.sum() / self.rounds.sum()))


def changes_of(run: Sums, by_batch: pa.Table) -> Changes | None:
    """Return the changes of a run; None if it has too few requests to find a change. `by_batch` is
    the pass of that name."""
    units = run.requests.units
    prompt = units.prompt
    has_rounds = run.rounds.rounds > 0
    if not has_rounds.any():
        return None
    order = np.flatnonzero(has_rounds)[np.argsort(run.first_s[has_rounds], kind="stable")]
    request = run.rounds.request[order]
    known = run.requests
    factors = (
        _range_of(run, run.in_context, request),
        _text(known.structured[request]),
        _text(np.round(known.temperature[request], 3)),
        _range_of(run, by_batch, request),
    )
    return changes(
        Series(
            start_s=run.first_s[order],
            end_s=float(run.last_s[has_rounds].max()),
            tokens=run.rounds.comparable_tokens()[order, 0],
            rounds=run.rounds.rounds[order].astype(np.float64),
            labels=_text(known.labels[request]),
            factors=factors,
            cluster=units.unit[request] if len(np.unique(units.unit)) < len(units) else None,
            keyed=units.in_time is not None,
            prompt=None if prompt is None else prompt[request],
            several_k=bool(run.rounds.mix.any()),
        )
    )


def _text(values: NDArray[np.object_] | Matrix) -> NDArray[np.str_]:
    return np.array([str(value) for value in values.tolist()])


def _range_of(run: Sums, table: pa.Table, request: Codes) -> NDArray[np.str_]:
    """Return the power of two that most of the rounds of each request are near, from a pass by
    request and bucket."""
    of, rounds = run.requests.codes(table), whole(table, "rounds")
    n = len(run.requests)
    total = np.bincount(of, rounds * whole(table, "bucket"), n)
    mean = total / np.maximum(np.bincount(of, rounds, n), 1)
    return np.asarray(np.rint(mean).astype(np.int64)[request].astype(str))


def changes(series: Series) -> Changes | None:
    """Return the changes of a series of requests in order, and of each label's; None if it has too
    few requests."""
    found = _changes(series, ALPHA)
    labels, requests = np.unique(series.labels, return_counts=True)
    enough = labels[requests >= 2 * LEAST]
    if found is None or len(labels) < 2 or not len(enough):
        return found
    alone = {
        str(label): _changes(series.where(series.labels == label), ALPHA / len(enough))
        for label in enough
    }
    return replace(found, by_label={label: result for label, result in alone.items() if result})


def _changes(series: Series, alpha: float) -> Changes | None:
    """Return the changes of a series; calls one in a share `alpha` of series without a change."""
    n = len(series.start_s)
    if n < 2 * LEAST:
        return None
    random, adjusted = np.random.RandomState(SEED), series.adjusted()
    whole_run = _tested(series, adjusted, slice(0, n), random)
    if whole_run is None:
        return None
    found = _splits(series, adjusted, slice(0, n), whole_run, DEPTH, random, alpha)
    splits = sorted(found, key=lambda split: split.at)
    cuts = [0, *(split.at for split in splits), n]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    sides = zip(splits, parts[:-1], parts[1:], strict=True)
    # Both a line and one step have two levels to choose; the step also has its place.
    value, weight = adjusted / series.rounds, series.rounds
    length = np.average(value, weights=weight)
    since = series.start_s - np.average(series.start_s, weights=weight)
    spread = (weight * since * since).sum()
    slope = (weight * since * (value - length)).sum() / spread if spread > 0 else 0.0
    line = np.asarray(length + slope * since)
    at = int(split_statistic(adjusted, weight, LEAST).argmax())
    if not at:  # all requests are equal
        one_step = np.full(len(adjusted), adjusted.sum() / weight.sum())
    else:
        lengths = [adjusted[x].sum() / weight[x].sum() for x in (slice(at), slice(at, None))]
        one_step = np.asarray(np.repeat(lengths, [at, len(adjusted) - at]))
    squares = [(weight * np.square(value - fit)).sum() for fit in (line, one_step)]
    gradual = bool(squares[0] < squares[1])
    fit = line if gradual else one_step
    if len(splits) == 2:  # a fall that ends is neither
        levels = [np.average(value[part], weights=weight[part]) for part in parts]
        fit = np.repeat(levels, [part.stop - part.start for part in parts])
    # The largest change of the requests as they came, each of them one of its own.
    raw = _tested(replace(series, cluster=None), series.tokens, slice(0, n), random)
    return Changes(
        requests=n,
        points=tuple(_point(series, adjusted, before, after, at.p) for at, before, after in sides),
        levels=tuple(_level(series, part) for part in parts),
        gradual=gradual if splits else None,
        clusters=len(np.unique(series.clusters)),
        keyed=series.cluster is not None and series.keyed,
        autocorrelation=autocorrelation(adjusted - weight * fit, weight),
        raw=_point(series, adjusted, slice(0, raw.at), slice(raw.at, n), raw.p)
        if raw is not None and raw.p <= ALPHA
        else None,
    )


def _tested(
    series: Series, tokens: Matrix, part: slice, random: np.random.RandomState
) -> Split | None:
    requests = RequestSeries(
        tokens=tokens[part],
        rounds=series.rounds[part],
        cluster=series.clusters[part],
        uneven=series.several_k,
    )
    return largest_split(requests, random)


def _splits(
    series: Series,
    adjusted: Matrix,
    part: slice,
    found: Split | None,
    depth: int,
    random: np.random.RandomState,
    alpha: float,
) -> Iterator[Split]:
    """Yield where the requests of `part` are split; `found` is their largest split."""
    if found is None or found.p > alpha / 2 ** (DEPTH - depth):
        return
    at = part.start + found.at
    yield Split(at=at, p=found.p)
    if depth == 1:
        return
    for side in (slice(part.start, at), slice(at, part.stop)):
        if side.stop - side.start >= 2 * LEAST:
            deeper = _tested(series, adjusted, side, random)
            yield from _splits(series, adjusted, side, deeper, depth - 1, random, alpha)


def _point(series: Series, adjusted: Matrix, before: slice, after: slice, p: float) -> ChangePoint:
    both = slice(before.start, after.stop)
    side = (np.arange(before.start, after.stop) >= after.start).astype(np.float64)
    weights = series.rounds[both], series.clusters[both]
    lengths = [float(series.tokens[x].sum() / series.rounds[x].sum()) for x in (before, after)]
    prompt = np.full(len(side), -1) if series.prompt is None else series.prompt[both]
    anchor = paired_step(series.tokens[both], series.rounds[both], prompt, side)
    step = _step(adjusted[both], *weights, side)
    known = series.cluster is not None and series.keyed
    session = series.clusters[both] if known else np.full(len(side), -1)
    going_on = paired_step(adjusted[both], series.rounds[both], session, side)
    shared = sorted(set(series.labels[before]) & set(series.labels[after]))
    mix, gaps = [], []
    for label in shared:
        sums = [
            (series.tokens[part][of_label].sum(), series.rounds[part][of_label].sum())
            for part in (before, after)
            for of_label in [series.labels[part] == label]
        ]
        (ta, na), (tb, nb) = sums
        mix.append(na + nb)
        gaps.append(tb / nb - ta / na)
    return ChangePoint(
        time_s=float(series.start_s[after.start]),
        before=lengths[0],
        after=lengths[1],
        difference=lengths[1] - lengths[0],
        interval=_step(series.tokens[both], *weights, side)[1],
        same_mix=float(np.average(gaps, weights=mix)) if shared else None,
        p=p,
        adjusted=step[0],
        adjusted_interval=step[1],
        anchored=anchor[0] if np.isfinite(anchor[0]) else None,
        anchored_interval=anchor[1],
        prompts=anchor[2],
        going_on=going_on[0] if np.isfinite(going_on[0]) else None,
        going_on_interval=going_on[1],
        sessions=going_on[2],
        overlap=min(
            _overlap(kinds[before], kinds[after], series.rounds[before], series.rounds[after])
            for kinds in (series.labels, *series.factors)
        ),
        newcomers=_newcomers(series, before, after),
    )


def _overlap(
    before: NDArray[np.str_], after: NDArray[np.str_], rounds_before: Matrix, rounds_after: Matrix
) -> float:
    """Return the share that two groups of requests have in common, by kind and rounds."""
    shared = (
        min(
            rounds[kinds == kind].sum() / rounds.sum()
            for kinds, rounds in ((before, rounds_before), (after, rounds_after))
        )
        for kind in np.unique(before).tolist()
    )
    return math.fsum(shared)


def _newcomers(series: Series, before: slice, after: slice) -> tuple[Newcomers, ...]:
    """Return the kinds of request that came with a fall, by the part of it that their larger share
    explains: its growth times what they accept less than the requests before the change."""
    length = series.tokens[before].sum() / series.rounds[before].sum()
    fall = length - series.tokens[after].sum() / series.rounds[after].sum()
    kinds = [*zip(KINDS, (series.labels, *series.factors), strict=False)]
    sides = [
        (kind, value, factor[before] == value, factor[after] == value)
        for kind, factor in kinds
        for value in np.unique(factor[after]).tolist()
    ]
    if series.prompt is not None:
        known = series.prompt[after] >= 0
        new = known & ~np.isin(series.prompt[after], series.prompt[before])
        sides.append((PROMPT, "", np.zeros(before.stop - before.start, dtype=np.bool_), new))
    found = []
    for kind, value, early, late in sides:
        late_rounds = series.rounds[after][late].sum()
        if not late_rounds or fall <= 0:
            continue
        came = Newcomers(
            kind=kind,
            value=value,
            share_before=float(series.rounds[before][early].sum() / series.rounds[before].sum()),
            share_after=float(late_rounds / series.rounds[after].sum()),
            mean_length=float(series.tokens[after][late].sum() / late_rounds),
        )
        part = (came.share_after - came.share_before) * (length - came.mean_length) / fall
        if part >= LEAST_PART:
            found.append((part, came))
    return tuple(came for _, came in sorted(found, key=lambda pair: -pair[0]))


def _step(
    tokens: Matrix, rounds: Matrix, cluster: Codes, side: Matrix
) -> tuple[float | None, Interval | None]:
    ratio = step_ratio(tokens, rounds, cluster, side)
    if ratio is None:
        return None, None
    spread = intervals(ratio)
    return float(ratio.value[0]), spread[0] if spread else None


def _level(series: Series, part: slice) -> AcceptanceLevel:
    tokens, rounds = series.tokens[part], series.rounds[part]
    code = np.unique(series.clusters[part], return_inverse=True)[1]
    sums = (by_cluster(code, counts)[:, None] for counts in (tokens, rounds))
    spread = ratio_intervals(*sums)
    last = part.stop >= len(series.start_s)
    return AcceptanceLevel(
        start_s=float(series.start_s[part.start]),
        end_s=series.end_s if last else float(series.start_s[part.stop]),
        requests=len(tokens),
        rounds=int(rounds.sum()),
        mean_length=float(tokens.sum() / rounds.sum()),
        interval=spread[0] if spread else None,
    )
