"""Comparison of two runs: differences in acceptance by depth and segment, or in time.

Requests are paired where both runs answered the same prompts, so that the difficulty of a prompt
cancels out. The acceptance length and all depths are tested jointly (see `permutation.joint`).
Labels are tested separately, corrected by Holm's rule, with a share of the error of their own
(Wiens 2003).

A run that served more of an easy label accepts more, whatever its drafter. Runs that did not answer
the same prompts are therefore compared at one mix of labels: their figures are averages over the
labels that both have, weighted by the mean of both runs' shares of rounds (direct standardisation:
Fleiss, Levin and Paik 2003, chapter 19).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from driftscope.analysis.comparability import NO_DIFFERENCE, Claim, Comparability, comparability_of
from driftscope.analysis.figures.rounds import Rounds, Side, grouped
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.number_words import (
    NOTHING,
    count,
    largest,
    listed,
    milliseconds,
    percent,
    runs_of_numbers,
)
from driftscope.analysis.pairing import (
    ASSUMED,
    UNPAIRED,
    Pairing,
    common_mix,
    merged_labels,
    pair,
    pair_sides,
)
from driftscope.analysis.query.query_engine import Codes, Matrix
from driftscope.analysis.speed import is_faster, with_run_effect
from driftscope.analysis.statistics.changes import OTHER
from driftscope.analysis.statistics.intervals import (
    Interval,
    difference,
    exact_interval,
    student,
    two_sided,
)
from driftscope.analysis.statistics.permutation import ALPHA, LEAST, Joint, gap_of, holm, joint
from driftscope.analysis.statistics.ratio import (
    Ratio,
    joined,
    marginal_ratio,
    ratio_of,
    ratio_over,
    weighted,
)
from driftscope.boundary.json_document import written_property
from driftscope.errors import MixedTraceError, NoDataError
from driftscope.trace.manifest import Manifest


def figures_at(side: Side, mix: Mapping[str, float], k: int) -> Ratio:
    """Return the acceptance length of the first `k` depths, then the marginal rate at each of them,
    [1 + k], at `mix`;
    clusters without a round are left out."""
    rounds, label = side.rounds, merged_labels(side, mix)
    parts = []
    for name in mix:
        member = np.asarray(label == name, dtype=np.int64)[:, None]
        tokens = (rounds.rounds + rounds.accepted_to(k))[:, None]
        length = rounds.over_clusters(ratio_of, tokens * member, rounds.rounds[:, None] * member)
        sums = (counts * member for counts in (rounds.reached, rounds.at_risk, rounds.deep_enough))
        parts.append(joined(length, rounds.over_clusters(marginal_ratio, *sums).first(k)))
    return weighted(parts, list(mix.values()))


MOST_GROUPS = 8192
"""Number of requests of a run above which they are compared in groups: intervals over so many
groups are as wide as over requests, and memory is bounded."""
TESTABLE = 10
"""Smallest number of clusters of requests in each run with a round accepted to a depth, and also of
clusters with a round that is not, for which a label's depth is tested: with fewer, a variance over
them says little."""
OF_LABELS = 0.2
"""Share of the permitted error that is kept for single labels if there are several; they get all of
it if the runs differ over all requests."""
MATTERS = 0.01
"""Smallest difference that is called one: a point of acceptance at a depth, or this share of an
acceptance length or a time. A large enough recording is sure of smaller ones, which change nothing
that a user sees."""
MATTERS_OF_OTHER_K = 0.05
"""Smallest such difference between runs that drafted different K: rounds of another K begin at
other places in the text, which alone makes an acceptance length up to 6 % shorter."""
LENGTH, MARGINAL = "acceptance.mean_length", "acceptance.marginal"
WHOLE = ""
"""Segment name of a difference over all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of one figure: the second run minus the first."""

    metric: str
    """Name of the figure's definition."""
    depth: int | None
    segment: str
    """Workload label, or WHOLE for all requests."""
    first: float
    second: float
    difference: float
    interval: Interval | None
    """95% interval of this difference alone; None if it is not known. It is exact if a run accepts
    nothing, or everything, at the depth."""
    first_interval: Interval | None = None
    second_interval: Interval | None = None
    """95% intervals of the two figures, each alone."""
    p: float | None
    """p-value, adjusted for the other figures of its segment; None if it is not tested."""
    p_adjusted: float | None
    """p-value, adjusted for the other segments of the comparison, too."""
    least: float = 0.0
    """Smallest difference that matters, see MATTERS."""
    simultaneous: Interval | None = None
    """Simultaneous 95% interval for all figures over all requests; None for a label, and if not
    known."""

    @written_property
    def differs(self) -> bool:
        """Whether the runs differ here, adjusted for the other tests, by enough to matter."""
        surely = self.p_adjusted is not None and self.p_adjusted < ALPHA
        return surely and abs(self.difference) >= self.least


@dataclass(frozen=True, slots=True, kw_only=True)
class MassComparison:
    """Differences of the attention masses of two runs."""

    differences: tuple[Difference, ...] = ()
    """At the first depth and at the deepest common one; () if they are not compared."""
    rounds: tuple[int, int] = (0, 0)
    """Number of verified chains of each run that they are over."""
    same_rounds: bool = False
    """Whether these are of the same requests and positions."""


NO_MASSES = MassComparison()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of two runs."""

    first: str
    second: str
    """Labels of the two runs."""
    pairing: str
    """Name of the way in which requests were paired, or UNPAIRED."""
    pairs: int
    alone: int
    """Number of requests without a partner, which are left out if requests are paired."""
    requests: tuple[int, int]
    """Number of compared requests of each run, which have at least one round."""
    clusters: tuple[int, int] | None = None
    """Number of clusters of these requests; None in a comparison of times."""
    differences: tuple[Difference, ...]
    same_rounds: bool = False
    """Whether every paired request accepted equally in both runs: at each depth in as many of its
    rounds."""
    masses: MassComparison = NO_MASSES
    mix: Mapping[str, float] = field(default_factory=dict)
    """Share of each label at which differences over all requests are taken; empty if they are
    taken as served, see `driftscope.analysis.compare`."""
    comparability: Comparability = NO_DIFFERENCE
    """Further differences between the runs."""
    where: str | None = None
    """Condition that the compared rows of both runs meet; None: all rows."""

    def at(self, metric: str, segment: str = WHOLE) -> tuple[Difference, ...]:
        """Return the differences of one metric, by depth."""
        return tuple(d for d in self.differences if (d.metric, d.segment) == (metric, segment))

    @written_property
    def apart_at(self) -> tuple[int, ...]:
        """Depths at which the runs' marginal acceptance differs."""
        return tuple(d.depth for d in self.at(MARGINAL) if d.differs and d.depth)

    @written_property
    def parts_from(self) -> int | None:
        """First depth at which the runs' marginal acceptance differs; None if it differs at
        none."""
        return next(iter(self.apart_at), None)

    @property
    def claim(self) -> Claim:
        """Subject of the comparison."""
        return Claim.SPEED if self.at(TPOT) else Claim.ACCEPTANCE

    @property
    def assumed(self) -> bool:
        """Whether the runs are only assumed to have answered the same prompts."""
        return self.pairing in ASSUMED

    @property
    def tested(self) -> bool:
        """Whether there are enough clusters of requests to test the depths."""
        return min(self.clusters or self.requests) >= LEAST

    @written_property
    def bound(self) -> float | None:
        """Largest difference in marginal acceptance, at any depth, that the runs are compatible
        with; None if it is not known at every depth."""
        ends = [difference.simultaneous for difference in self.at(MARGINAL)]
        if not ends or None in ends:
            return None
        return max(max(abs(end.low), abs(end.high)) for end in ends if end)


def compare(first: Sums, second: Sums, labels: tuple[str, str]) -> Comparison:
    """Compare two runs, named by `labels`, at the depths that both drafted.

    Raises MixedTraceError for runs that share no depth.
    """
    manifests = first.tables.manifest, second.tables.manifest
    return compare_sides((first.side, second.side), manifests, labels)


def compare_sides(
    sides: tuple[Side, Side], manifests: tuple[Manifest, Manifest], labels: tuple[str, str]
) -> Comparison:
    """Compare two runs whose rounds by request are already available."""
    a, b = sides
    if not _depths(a, b):
        raise MixedTraceError(
            f"{labels[0]} and {labels[1]} have no depth in common at which drafts were verified "
            "whatever their confidence"
        )
    pairing = pair_sides(a, b)
    comparability = comparability_of(sides, manifests, pairing)
    if pairing.how != UNPAIRED:
        a, b = _rows_of(a, pairing.first), _rows_of(b, pairing.second)
        b = replace(b, rounds=b.rounds.grouped_like(a.rounds))
    same = pairing.how != UNPAIRED and (
        np.array_equal(a.rounds.histogram, b.rounds.histogram)
        and np.array_equal(a.rounds.lengths, b.rounds.lengths)
    )
    compared = comparison(a, b, labels, pairing)
    return replace(compared, comparability=comparability, same_rounds=same)


def _rows_of(side: Side, requests: Codes) -> Side:
    """Return the rows of these requests, in this order."""
    row = np.zeros(int(side.rounds.request.max()) + 1, dtype=np.int64)
    row[side.rounds.request] = np.arange(len(side.rounds.request))
    return side.of(row[requests])


def comparison(a: Side, b: Side, labels: tuple[str, str], pairing: Pairing) -> Comparison:
    """Compare two sides, whose rows are pairs unless the pairing is UNPAIRED."""
    paired = pairing.how != UNPAIRED
    requests = len(a.labels), len(b.labels)
    a, b = grouped((a, b), MOST_GROUPS, paired=paired)
    mix = {} if paired else common_mix(a, b)
    whole = tuple(_whole(a, b, paired, mix))
    parts = tuple(_by_label(a, b, paired))
    return Comparison(
        first=labels[0],
        second=labels[1],
        pairing=pairing.how,
        pairs=len(pairing.first),
        alone=pairing.alone if paired else 0,
        requests=requests,
        clusters=(len(a.rounds.by_cluster().rounds), len(b.rounds.by_cluster().rounds)),
        mix=mix,
        differences=(*_shared_error(whole, bool(parts)), *_labels_corrected(whole, parts)),
    )


def together(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return the differences with p-values adjusted together, by Holm's rule."""
    raw = tuple(differences)
    tested = [at for at, row in enumerate(raw) if row.p is not None]
    adjusted = dict(zip(tested, holm([raw[at].p or 0.0 for at in tested]), strict=True))
    return tuple(replace(row, p_adjusted=adjusted.get(at)) for at, row in enumerate(raw))


def _shared_error(whole: tuple[Difference, ...], labels: bool) -> Iterator[Difference]:
    """Adjust differences over all requests for the share of the error that is kept for `labels`, if
    there are any."""
    left = 1.0 - OF_LABELS if labels else 1.0
    for row in whole:
        yield replace(row, p_adjusted=None if row.p is None else min(row.p / left, 1.0))


def _labels_corrected(
    whole: tuple[Difference, ...], parts: tuple[Difference, ...]
) -> Iterator[Difference]:
    """Adjust differences of labels by Holm's rule at their share of the error: all of it if the
    runs differ over all requests."""
    left = 1.0 - OF_LABELS
    least = min((row.p / left for row in whole if row.p is not None), default=1.0)
    for row in together(parts):
        own = row.p_adjusted
        if own is None:
            yield row
        elif least < ALPHA:
            yield replace(row, p_adjusted=max(own, least))
        else:
            yield replace(row, p_adjusted=min(own / OF_LABELS, 1.0))


def _whole(a: Side, b: Side, paired: bool, mix: Mapping[str, float]) -> Iterator[Difference]:
    """Yield the differences over all requests, tested jointly; at `mix` if there is one."""
    k = _depths(a, b)
    if mix:
        ratios = figures_at(a, mix, k), figures_at(b, mix, k)
    else:
        ratios = figures_of(a.rounds, k), figures_of(b.rounds, k)
    joint_test = joint(*ratios, paired=paired)
    edges = _Edges(a.rounds, b.rounds, ratios)
    for at, row in enumerate(_of_acceptance_in(ratios, a, b, paired=paired)):
        exact = at > 0 and edges.at(at)
        if at and not exact and paired and joint_test.gap[at] == 0 and joint_test.error[at] == 0:
            # The rate is equal in both requests of each pair. The share of pairs in which it is not
            # lies below an exact bound, and so does the difference.
            most = exact_interval(0, len(a.rounds.by_cluster().rounds)).high
            same = Interval.between(-most, most)
            yield replace(row, interval=same, p=None, simultaneous=same)
            continue
        own = edges.rate_intervals(at) if exact else (row.first_interval, row.second_interval)
        yield replace(
            row,
            first_interval=own[0],
            second_interval=own[1],
            interval=edges.difference(at, None, 1) if exact else row.interval,
            p=float(joint_test.p[at]) if np.isfinite(joint_test.p[at]) else None,
            simultaneous=edges.difference(at, float(joint_test.critical[at]), k)
            if exact
            else _around(joint_test, at),
        )


def _by_label(a: Side, b: Side, paired: bool) -> Iterator[Difference]:
    """Yield the differences of each label that both runs have, each tested alone; none if there is
    only one label."""
    if len({*a.labels, *b.labels}) < 2:
        return
    for label in sorted({*a.labels} & {*b.labels}):
        mine, theirs, k = a.labelled(label), b.labelled(label), _depths(a, b)
        ratios = figures_of(mine.rounds, k), figures_of(theirs.rounds, k)
        usable = [True, *_testable(mine.rounds.by_cluster(), theirs.rounds.by_cluster(), k)]
        rows = _of_acceptance_in(ratios, a, b, paired=paired, segment=label)
        for row, tested in zip(rows, usable, strict=True):
            yield row if tested else replace(row, interval=None, p=None)


def _depths(a: Side, b: Side) -> int:
    """Return the number of depths at which both runs verified drafts."""
    return min(a.rounds.comparable_k, b.rounds.comparable_k)


def differences_of(
    names: Sequence[tuple[str, int | None]],
    ratios: tuple[Ratio, Ratio],
    least: Sequence[float],
    *,
    paired: bool,
    segment: str = WHOLE,
    supported: bool = False,
) -> Iterator[Difference]:
    """Yield the difference of each figure of two ratios, tested alone; `names` are its metric and
    depth, and `least` is what matters. With `supported`, only figures of enough clusters have an
    interval."""
    gap, error, df = gap_of(*ratios, paired=paired)
    half, p = student(df) * error, p_values(gap, error, df)
    own = [own_intervals(ratio) for ratio in ratios]
    for at, (metric, depth) in enumerate(names):
        known = bool(np.isfinite(p[at]))
        # A length that is equal in both requests of each pair differs by nothing.
        same = paired and metric == LENGTH and gap[at] == 0 == error[at]
        wide = supported and not all(bool(ratio.supported[at]) for ratio in ratios)
        clusters = float(min(ratio.df[at] for ratio in ratios)) + 1.0 if supported else None
        yield Difference(
            metric=metric,
            depth=depth,
            segment=segment,
            first=float(ratios[0].value[at]),
            second=float(ratios[1].value[at]),
            difference=float(gap[at]),
            least=least[at],
            first_interval=own[0][at],
            second_interval=own[1][at],
            interval=Interval.between(gap[at] - half[at], gap[at] + half[at], clusters)
            if (known or same) and not wide
            else None,
            p=float(p[at]) if known else None,
            p_adjusted=None,
        )


def _of_acceptance_in(
    ratios: tuple[Ratio, Ratio], a: Side, b: Side, *, paired: bool, segment: str = WHOLE
) -> Iterator[Difference]:
    """Yield the differences of the figures that `figures_of` returns."""
    same_k = a.rounds.comparable_k == b.rounds.comparable_k
    least = MATTERS if same_k else MATTERS_OF_OTHER_K
    depths = range(1, len(ratios[0].value))
    names = [(LENGTH, None), *((MARGINAL, depth) for depth in depths)]
    matters = [least * float(ratios[0].value[0]), *(least for _ in depths)]
    yield from differences_of(
        names, ratios, matters, paired=paired, segment=segment, supported=True
    )


def own_intervals(ratio: Ratio) -> tuple[Interval | None, ...]:
    """Return the interval of each ratio alone; None without support."""
    half = student(ratio.df) * ratio.error
    ends = zip(ratio.value - half, ratio.value + half, ratio.supported, strict=True)
    return tuple(Interval.between(low, high) if is_known else None for low, high, is_known in ends)


def accepts_less(compared_runs: Comparison | None) -> bool:
    """Whether the second run accepts less than the first, and the runs differ at some depth."""
    return _differs_towards(compared_runs, -1.0)


def accepts_more(compared_runs: Comparison | None) -> bool:
    """Whether the second run accepts more than the first, and the runs differ at some depth."""
    return _differs_towards(compared_runs, 1.0)


def _differs_towards(compared_runs: Comparison | None, sign: float) -> bool:
    if compared_runs is None or compared_runs.parts_from is None:
        return False
    return any(sign * difference.difference > 0 for difference in compared_runs.at(LENGTH))


def figures_of(rounds: Rounds, k: int) -> Ratio:
    """Return the acceptance length of the first `k` depths, then the marginal rate at each of them,
    [1 + k]; clusters without a round are left out."""
    return joined(rounds.length_ratio(k), rounds.marginal_ratio().first(k))


def p_values(gap: Matrix, error: Matrix, df: Matrix) -> Matrix:
    """Return two-sided p-values; NaN where the standard error is 0, because all requests agree and
    nothing can be tested."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error > 0, two_sided(gap / error, df), np.nan)


def _around(joint_test: Joint, at: int) -> Interval | None:
    if np.isnan(joint_test.p[at]):
        return None
    half = joint_test.critical[at] * joint_test.error[at]
    return Interval.between(joint_test.gap[at] - half, joint_test.gap[at] + half)


class _Edges:
    """Depths at which a run accepts nothing, or everything: all requests agree there, so its rate
    has the exact interval of its rounds."""

    def __init__(self, a: Rounds, b: Rounds, ratios: tuple[Ratio, Ratio]) -> None:
        self._ratios = ratios
        self._of = [rounds.deep_enough.sum(axis=0) for rounds in (a, b)]

    def at(self, depth: int) -> bool:
        """Whether either run is at an edge at this depth."""
        return any(self._is_edge(run, depth) for run in (0, 1))

    def rate_intervals(self, depth: int) -> tuple[Interval | None, Interval | None]:
        """Return the intervals of both runs' rates."""
        return self._interval(0, depth, None, 1 - ALPHA), self._interval(1, depth, None, 1 - ALPHA)

    def difference(self, depth: int, critical: float | None, figures: int) -> Interval | None:
        """Return the interval of the second run minus the first, at the level of one of `figures`;
        `critical` is the half-width in standard errors for a run that is not at an edge, Student's
        if None."""
        around = [self._interval(run, depth, critical, 1 - ALPHA / figures) for run in (0, 1)]
        if around[0] is None or around[1] is None:
            return None
        first, second = (float(ratio.value[depth]) for ratio in self._ratios)
        return difference(second, around[1], first, around[0])

    def _is_edge(self, run: int, depth: int) -> bool:
        return self._ratios[run].value[depth] in (0.0, 1.0)

    def _interval(
        self, run: int, depth: int, critical: float | None, level: float
    ) -> Interval | None:
        ratio, value = self._ratios[run], float(self._ratios[run].value[depth])
        if self._is_edge(run, depth):
            of = int(self._of[run][depth - 1])
            return exact_interval(of * int(value), of, level)
        scale = float(student(ratio.df)[depth]) if critical is None else critical
        half = scale * float(ratio.error[depth])
        return Interval.between(value - half, value + half) if ratio.supported[depth] else None


def _testable(a: Rounds, b: Rounds, k: int) -> list[bool]:
    """Return, by depth, whether enough clusters of either run have an accepted round, and enough
    have a rejected one."""
    some = [(rounds.reached[:, :k] > 0).sum(axis=0) for rounds in (a, b)]
    other = [(rounds.reached[:, :k] < rounds.deep_enough[:, :k]).sum(axis=0) for rounds in (a, b)]
    return [bool(enough) for enough in np.min([*some, *other], axis=0) >= TESTABLE]


TPOT, TTFT = "latency.tpot_s", "latency.ttft_s"


def compare_times(
    sides: tuple[Side, Side], manifests: tuple[Manifest, Manifest], labels: tuple[str, str]
) -> Comparison:
    """Compare the times of the requests of two runs; requests without a time per output token are
    left out.

    Raises NoDataError if a run has no finished request with such a time.
    """
    first, second = (side.requests for side in sides)
    assert first is not None and second is not None  # noqa: S101  sides of sums have no times
    runs = (first, second)
    timed = [np.isfinite(run.tpot_s) for run in runs]
    for label, run_rows in zip(labels, timed, strict=True):
        if not run_rows.any():
            raise NoDataError(f"{label}: no finished request in it whose time per token is known")
    pairing = pair(first, second, *timed)
    paired = pairing.how != UNPAIRED
    rows = (
        (pairing.first, pairing.second) if paired else tuple(known.nonzero()[0] for known in timed)
    )
    units = [run.units.unit[run_rows] for run, run_rows in zip(runs, rows, strict=True)]
    spans = [
        (None if run.spans is None else run.spans[run_rows])
        for run, run_rows in zip(runs, rows, strict=True)
    ]
    if paired:
        units, spans = [units[0], units[0]], [spans[0], spans[0]]
    values = {
        name: [getattr(run, column)[run_rows] for run, run_rows in zip(runs, rows, strict=True)]
        for name, column in ((TPOT, "tpot_s"), (TTFT, "ttft_s"))
    }
    return Comparison(
        first=labels[0],
        second=labels[1],
        pairing=pairing.how,
        pairs=len(pairing.first),
        alone=pairing.alone if paired else 0,
        requests=(len(rows[0]), len(rows[1])),
        comparability=comparability_of(sides, manifests, pairing),
        differences=together(_time_differences(values, (units, spans), paired)),
    )


def _time_differences(
    values: dict[str, list[Matrix]], clusters: Sequence[Sequence[Codes | None]], paired: bool
) -> Iterator[Difference]:
    """Yield the difference of each time. `clusters` are the two runs' units and their spans of
    time: requests served at once share their steps, so that the wider interval counts."""
    for name, (a, b) in values.items():
        known = [np.isfinite(a), np.isfinite(b)]
        if paired:
            known = [known[0] & known[1]] * 2
        if known[0].any() and known[1].any():
            means = [
                [
                    _mean(v[some], u[some])
                    for v, u, some in zip((a, b), codes, known, strict=True)
                    if u is not None
                ]
                for codes in clusters
            ]
            both = [(pair[0], pair[1]) for pair in means if len(pair) == 2]
            rows = [
                row
                for pair in both
                for row in differences_of(
                    [(name, None)], pair, [MATTERS * float(pair[0].value[0])], paired=paired
                )
            ]
            yield max(rows, key=_width)


def _width(difference: Difference) -> float:
    interval = difference.interval
    return 0.0 if interval is None else interval.high - interval.low


def _mean(values: Matrix, unit: Codes) -> Ratio:
    """Return the mean over requests, with its influences over units."""
    column = values[:, None]
    return ratio_over(ratio_of, (column, np.ones_like(column)), unit)


_ALONE = {"": "requests without a label", OTHER: "rare labels together"}
"""Words for names of labels that are no names."""
TIMES = {TPOT: "time per output token", TTFT: "time to first token"}
"""Words for the metrics that are times."""


def verdict(comparison: Comparison) -> str:
    """Return one sentence: from which depth which run accepts more, or that no difference is
    shown; or that it cannot be told, because something else that differs can explain it."""
    times = comparison.at(TPOT)
    if times:
        tpot = times[0]
        known, second = speed_of(comparison), comparison.second
        if known is None:
            sentence = "no difference in time per output token is shown"
        else:
            value, interval = known
            hows = {True: "faster", False: "slower", None: "neither surely faster nor slower"}
            sentence = (
                f"{second} serves {hows[is_faster(value, interval)]}: {value:.2f}× as fast as "
                f"{comparison.first} ({interval.low:.2f}× to {interval.high:.2f}×; "
                f"{milliseconds(tpot.second)} per output token compared with "
                f"{milliseconds(tpot.first)})"
            )
    else:
        sentence = _of_acceptance(comparison)
    sentence += ", at one mix of labels" if comparison.mix else ""
    explaining = comparison.comparability.explaining(comparison.claim)
    if not explaining:
        return sentence
    what = "serves faster" if times else "accepts more"
    return (
        f"which run {what} cannot be told: they differ in "
        f"{listed([circumstance.words for circumstance in explaining])}; as recorded, {sentence}"
    )


def mix_words(comparison: Comparison) -> str:
    """Return a sentence on the mix of labels at which differences over all requests are taken; ""
    if they are taken as served."""
    if not comparison.mix:
        return ""
    if len(comparison.mix) == 1:
        (name,) = comparison.mix
        return (
            "They served labels in other shares, so differences over all requests are taken where "
            f"both have enough prompts: {_ALONE.get(name, name)}."
        )
    shares = listed([f"{percent(share)} {name}" for name, share in comparison.mix.items()])
    return (
        "They served labels in other shares, so differences over all requests are taken at one "
        f"mix: {shares} of the rounds."
    )


def _of_acceptance(comparison: Comparison) -> str:
    depth, by_depth = comparison.parts_from, comparison.at(MARGINAL)
    (length,) = comparison.at(LENGTH)
    if depth is not None:
        at = by_depth[depth - 1]
        noun = "depth" if len(comparison.apart_at) == 1 else "depths"
        if (at.difference > 0) == (length.difference > 0):
            opposite = ""
        else:
            opposite = (
                f"; {_better(comparison, length)} has the longer acceptance length: {_ends(length)}"
            )
        return (
            f"{_better(comparison, at)} accepts more from depth {depth} on: {_ends(at)} there "
            f"(95% interval {between_ends(at)}); the runs differ at {noun} "
            f"{runs_of_numbers(comparison.apart_at)}{opposite}"
        )
    if length.differs:
        return (
            f"{_better(comparison, length)} has the longer acceptance length: {_ends(length)} "
            f"(95% interval {between_ends(length)}), but no single depth differs"
        )
    some = [d for d in comparison.differences if d.differs]
    if some:
        return f"the runs differ in {count(len(some), 'figure')} of single labels, but not overall"
    if comparison.same_rounds:
        return (
            f"the runs accept the same: in each of {count(comparison.pairs, 'pair')} of requests, "
            "equally many rounds to every depth"
        )
    if comparison.bound is None:
        return "no difference is shown: too little is recorded to bound it"
    return f"no difference is shown: {largest(comparison.bound)}"


def speed_of(comparison: Comparison) -> tuple[float, Interval] | None:
    """Return how many times as fast the second run serves as the first one, with its 95% interval,
    which includes the run effect; None if it is not known."""
    tpot = next(iter(comparison.at(TPOT)), None)
    if tpot is None or tpot.interval is None or not min(tpot.first, tpot.second) > 0:
        return None
    value = tpot.first / tpot.second
    half = (tpot.interval.high - tpot.interval.low) / 2 / math.sqrt(tpot.first * tpot.second)
    interval = Interval.between(
        value * math.exp(-half), value * math.exp(half), tpot.interval.clusters
    )
    return None if interval is None else (value, with_run_effect(value, interval))


def _better(comparison: Comparison, at: Difference) -> str:
    return comparison.second if at.difference > 0 else comparison.first


def _ends(at: Difference) -> str:
    low, high = sorted((at.first, at.second))
    return f"{high:.3f} compared with {low:.3f}"


def between_ends(row: Difference) -> str:
    """Return the ends of the interval in words, a dash where there is none."""
    if row.interval is None:
        return "–"
    return f"{signed(row, row.interval.low)} to {signed(row, row.interval.high)}"


def signed(row: Difference, value: float) -> str:
    """Return a difference with its sign, in the unit of the metric."""
    if not math.isfinite(value):
        return NOTHING
    return f"{1000 * value:+.2f} ms" if row.metric in TIMES else f"{value:+.3f}"
