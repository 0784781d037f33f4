"""What sets two runs apart: differences in acceptance by depth and segment, with intervals.

Paired where both runs answered the same prompts: what makes a prompt easy then drops out. The
acceptance length and all depths are tested jointly
(`driftscope.analysis.statistics.joint_difference`). Labels are tested beside that, corrected by
Holm's rule, with a share of the error of their own (Wiens 2003).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from driftscope.analysis.compare.run_differences import unlike
from driftscope.analysis.figures.request_pairing import (
    BY_ID,
    BY_ORDER,
    UNPAIRED,
    Pairing,
    pair_keys,
    unpaired,
)
from driftscope.analysis.figures.round_sums import Rounds
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.side import UNKNOWN, Side, side_of
from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.interval import (
    Interval,
    Ratio,
    difference,
    exact_interval,
    joined,
    student,
    two_sided,
)
from driftscope.analysis.statistics.joint_difference import LEAST, Joint, joint
from driftscope.analysis.statistics.multiple_comparisons import ALPHA, holm
from driftscope.errors import MixedTraceError
from driftscope.trace.format.manifest import Manifest

TESTABLE = 10
"""Requests, both runs together, of which some round is accepted to a depth, and of which some is
not, from which a label's depth is tested: below, a variance over requests says little."""
OF_LABELS = 0.2
"""Share of the permitted error that is kept for single labels, where there are several; all of it
where the runs differ over all requests."""
LENGTH, MARGINAL = "acceptance.mean_length", "acceptance.marginal"
WHOLE = ""
"""Segment of a difference over all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Second run less first, of one figure."""

    metric: str
    """Name of its definition."""
    depth: int | None
    segment: str
    """Workload label, or WHOLE."""
    first: float
    second: float
    difference: float
    interval: Interval | None
    """95 %, of this difference alone; None where it cannot be told. Exact where a run accepts
    nothing, or everything, at the depth."""
    p: float | None
    """Adjusted for the other figures of its segment; None where it is not tested."""
    p_adjusted: float | None
    """Adjusted for the other segments of the comparison, too."""
    simultaneous: Interval | None = None
    """95 % for all figures over all requests together; None in a label, and where not known."""

    @property
    def differs(self) -> bool:
        """Whether the runs differ here, the other tests allowed for."""
        return self.p_adjusted is not None and self.p_adjusted < ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side."""

    first: str
    second: str
    """Labels of the runs."""
    pairing: str
    """How requests were paired, or UNPAIRED."""
    pairs: int
    alone: int
    """Requests that found no partner, and are left out when paired."""
    requests: tuple[int, int]
    """Requests with a round that are compared."""
    differences: tuple[Difference, ...]
    unlike: tuple[str, ...] = ()
    """Other things in which the runs differ, see `driftscope.analysis.compare.run_differences`."""

    def at(self, metric: str, segment: str = WHOLE) -> tuple[Difference, ...]:
        """The differences of one metric, by depth."""
        return tuple(d for d in self.differences if (d.metric, d.segment) == (metric, segment))

    @property
    def apart_at(self) -> tuple[int, ...]:
        """Depths at which the runs' marginal acceptance differs."""
        return tuple(d.depth for d in self.at(MARGINAL) if d.differs and d.depth)

    @property
    def parts_from(self) -> int | None:
        """First depth at which the runs' marginal acceptance differs; None where none does."""
        return next(iter(self.apart_at), None)

    @property
    def tested(self) -> bool:
        """Whether there are requests enough to test the depths."""
        return min(self.requests) >= LEAST

    @property
    def bound(self) -> float | None:
        """The largest difference in marginal acceptance, at any depth, that the runs are compatible
        with; None where it is not known at every depth."""
        ends = [each.simultaneous for each in self.at(MARGINAL)]
        if not ends or None in ends:
            return None
        return max(max(abs(each.low), abs(each.high)) for each in ends if each)


def compare(first: Sums, second: Sums, labels: tuple[str, str]) -> Comparison:
    """The comparison of two runs, called by `labels`; of the depths that both drafted.

    Raises MixedTraceError for runs that share no depth.
    """
    manifests = first.tables.manifest, second.tables.manifest
    return compare_sides((side_of(first), side_of(second)), manifests, labels)


def compare_sides(
    sides: tuple[Side, Side], manifests: tuple[Manifest, Manifest], labels: tuple[str, str]
) -> Comparison:
    """Compare runs whose rounds by request are already there."""
    a, b = sides
    if not min(a.rounds.k, b.rounds.k):
        raise MixedTraceError(f"{labels[0]} and {labels[1]} have no drafted depth in common")
    found = pair_sides(a, b)
    if found.how != UNPAIRED:
        a, b = a.of(found.first), b.of(found.second)
    return replace(
        comparison(a, b, labels, found), unlike=unlike(*manifests, sides=sides, pairing=found.how)
    )


def pair_sides(a: Side, b: Side) -> Pairing:
    """Which rows of the two belong together."""
    kinds = {BY_ID: (a.ids, b.ids), BY_ORDER: (a.orders, b.orders)}
    keys = {how: (_rows(mine), _rows(theirs)) for how, (mine, theirs) in kinds.items()}
    return pair_keys(keys) or unpaired(len(a.labels) + len(b.labels))


def _rows(names: tuple[str, ...]) -> dict[object, int]:
    return {name: at for at, name in enumerate(names) if name != UNKNOWN}


def comparison(a: Side, b: Side, labels: tuple[str, str], pairing: Pairing) -> Comparison:
    """The comparison of two sides, whose rows are pairs unless the pairing is UNPAIRED."""
    paired = pairing.how != UNPAIRED
    whole = tuple(_whole(a, b, paired))
    parts = tuple(_by_label(a, b, paired))
    return Comparison(
        first=labels[0],
        second=labels[1],
        pairing=pairing.how,
        pairs=len(pairing.first),
        alone=pairing.alone if paired else 0,
        requests=(len(a.labels), len(b.labels)),
        differences=(*_shared_error(whole, bool(parts)), *_labels_corrected(whole, parts)),
    )


def together(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Differences tested together, by Holm's rule."""
    raw = tuple(differences)
    tested = [at for at, each in enumerate(raw) if each.p is not None]
    adjusted = dict(zip(tested, holm([raw[at].p or 0.0 for at in tested]), strict=True))
    return tuple(replace(each, p_adjusted=adjusted.get(at)) for at, each in enumerate(raw))


def _shared_error(whole: tuple[Difference, ...], labels: bool) -> Iterator[Difference]:
    """Differences over all requests, of whose error labels take a share where there are some."""
    left = 1.0 - OF_LABELS if labels else 1.0
    for each in whole:
        yield replace(each, p_adjusted=None if each.p is None else min(each.p / left, 1.0))


def _labels_corrected(
    whole: tuple[Difference, ...], parts: tuple[Difference, ...]
) -> Iterator[Difference]:
    """Differences of labels, by Holm's rule at the error that is theirs: all of it where the runs
    differ over all requests."""
    left = 1.0 - OF_LABELS
    least = min((each.p / left for each in whole if each.p is not None), default=1.0)
    for each in together(parts):
        own = each.p_adjusted
        if own is None:
            yield each
        elif least < ALPHA:
            yield replace(each, p_adjusted=max(own, least))
        else:
            yield replace(each, p_adjusted=min(own / OF_LABELS, 1.0))


def _whole(a: Side, b: Side, paired: bool) -> Iterator[Difference]:
    """Differences over all requests, tested jointly."""
    k = _depths(a, b)
    ratios = figures_of(a.rounds, k), figures_of(b.rounds, k)
    found = joint(*ratios, paired=paired)
    edges = _Edges(a.rounds, b.rounds, ratios)
    for at, each in enumerate(_differences(ratios, paired, WHOLE)):
        exact = at > 0 and edges.at(at)
        if at and not exact and paired and found.gap[at] == 0 and found.error[at] == 0:
            same = _same_in_all(len(a.labels))
            yield replace(each, interval=same, simultaneous=same)
            continue
        yield replace(
            each,
            interval=edges.difference(at, None, 1) if exact else each.interval,
            p=float(found.p[at]) if np.isfinite(found.p[at]) else None,
            simultaneous=edges.difference(at, found.critical, k) if exact else _around(found, at),
        )


def _by_label(a: Side, b: Side, paired: bool) -> Iterator[Difference]:
    """Differences of each label that both runs have, each tested alone; none of a label that has
    all requests."""
    if len({*a.labels, *b.labels}) < 2:
        return
    for label in sorted({*a.labels} & {*b.labels}):
        mine, theirs, k = a.labelled(label), b.labelled(label), _depths(a, b)
        ratios = figures_of(mine.rounds, k), figures_of(theirs.rounds, k)
        gap, error, df = gap_of(*ratios, paired=paired)
        p = p_values(gap, error, df)
        usable = [True, *_testable(mine.rounds, theirs.rounds, k)]
        for at, each in enumerate(_differences(ratios, paired, label)):
            known = usable[at] and bool(np.isfinite(p[at]))
            yield replace(
                each, interval=each.interval if known else None, p=float(p[at]) if known else None
            )


def _depths(a: Side, b: Side) -> int:
    """Depths that both drafted."""
    return min(a.rounds.k, b.rounds.k)


def _differences(ratios: tuple[Ratio, Ratio], paired: bool, segment: str) -> Iterator[Difference]:
    """The differences of each figure, untested."""
    gap, error, df = gap_of(*ratios, paired=paired)
    half = student(df) * error
    for at in range(len(gap)):
        known = error[at] > 0 and all(bool(ratio.supported[at]) for ratio in ratios)
        yield Difference(
            metric=MARGINAL if at else LENGTH,
            depth=at or None,
            segment=segment,
            first=float(ratios[0].value[at]),
            second=float(ratios[1].value[at]),
            difference=float(gap[at]),
            interval=Interval.of(gap[at] - half[at], gap[at] + half[at]) if known else None,
            p=None,
            p_adjusted=None,
        )


def accepts_less(found: Comparison | None) -> bool:
    """Whether the second run accepts less than the first, where they differ at some depth."""
    return _parts(found, -1.0)


def accepts_more(found: Comparison | None) -> bool:
    """Whether the second run accepts more than the first, where they differ at some depth."""
    return _parts(found, 1.0)


def _parts(found: Comparison | None, sign: float) -> bool:
    if found is None or found.parts_from is None:
        return False
    return any(sign * each.difference > 0 for each in found.at(LENGTH))


def figures_of(rounds: Rounds, k: int) -> Ratio:
    """[1 + k] the acceptance length, then the marginal rate at each depth; requests without a round
    are left out."""
    return joined(rounds.length_ratio(), rounds.marginal_ratio().first(k))


def gap_of(a: Ratio, b: Ratio, *, paired: bool) -> tuple[Matrix, Matrix, Matrix]:
    """Difference, standard error and degrees of freedom of each figure."""
    gap = b.value - a.value
    if paired:
        n = len(a.influence)
        moved = np.square(b.influence - a.influence).sum(axis=0)
        error = np.sqrt((n - 1) / n * moved) if n > 1 else np.full_like(gap, np.nan)
        return gap, error, np.minimum(a.df, b.df)
    va, vb = np.square(a.error), np.square(b.error)
    spread = np.square(va) / np.maximum(a.df, 1) + np.square(vb) / np.maximum(b.df, 1)
    df = np.where(spread > 0, np.square(va + vb) / np.where(spread > 0, spread, 1), 1.0)
    return gap, np.sqrt(va + vb), df


def p_values(gap: Matrix, error: Matrix, df: Matrix) -> Matrix:
    """Two-sided; where no request differs from another there is nothing to test by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error > 0, two_sided(gap / error, df), np.nan)


def _same_in_all(pairs: int) -> Interval | None:
    """The difference of a rate that is the same in both requests of each pair: the share of pairs
    in which it is not lies below an exact bound, and the difference with it."""
    most = exact_interval(0, pairs).high
    return Interval.of(-most, most)


def _around(found: Joint, at: int) -> Interval | None:
    if np.isnan(found.p[at]):
        return None
    half = found.critical * found.error[at]
    return Interval.of(found.gap[at] - half, found.gap[at] + half)


class _Edges:
    """Depths at which a run accepts nothing, or everything: no request differs from another there,
    so its rate has the exact interval of its rounds."""

    def __init__(self, a: Rounds, b: Rounds, ratios: tuple[Ratio, Ratio]) -> None:
        self._ratios = ratios
        self._of = [each.deep_enough.sum(axis=0) for each in (a, b)]

    def at(self, depth: int) -> bool:
        """Whether either run is at an edge."""
        return any(self._is_edge(run, depth) for run in (0, 1))

    def difference(self, depth: int, critical: float | None, figures: int) -> Interval | None:
        """Return the second run less the first, at the level of one of `figures`; `critical` is the
        half-width in standard errors of a run that is not at an edge, Student's where None."""
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
        return Interval.of(value - half, value + half) if ratio.supported[depth] else None


def _testable(a: Rounds, b: Rounds, k: int) -> list[bool]:
    """By depth, whether enough requests have rounds on either side of the question."""
    some = sum((each.reached[:, :k] > 0).sum(axis=0) for each in (a, b))
    other = sum((each.reached[:, :k] < each.deep_enough[:, :k]).sum(axis=0) for each in (a, b))
    return [bool(enough) for enough in np.minimum(some, other) >= TESTABLE]
