"""What sets two runs apart: differences in acceptance by depth and segment, with intervals.

Paired where both runs answered the same prompts: what makes a prompt easy then drops out. All
differences of one comparison are tested together, corrected by Holm's rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.collect import Sums
from driftscope.analysis.columns import Codes, Matrix
from driftscope.analysis.interval import Interval, Ratio, joined, student, two_sided
from driftscope.analysis.multiple import ALPHA, holm
from driftscope.analysis.pairing import UNPAIRED, Pairing, pair
from driftscope.analysis.rounds import Rounds
from driftscope.errors import MixedTraceError

TESTABLE = 10
"""Requests, both runs together, of which some round is accepted to a depth, and of which some is
not, from which the depth is tested: below, a variance over requests says little."""
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
    """95 %, of this difference alone; None where it is not tested."""
    p: float | None
    """Of this test alone."""
    p_adjusted: float | None
    """By Holm's rule over all differences of the comparison."""

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

    def at(self, metric: str, segment: str = WHOLE) -> tuple[Difference, ...]:
        """The differences of one metric, by depth."""
        return tuple(d for d in self.differences if (d.metric, d.segment) == (metric, segment))

    @property
    def parts_from(self) -> int | None:
        """First depth from which the runs' marginal acceptance differs at every deeper depth that
        can be tested, always in the same direction; None where there is none."""
        found: Difference | None = None
        for each in reversed([d for d in self.at(MARGINAL) if d.p is not None]):
            same = found is None or (each.difference > 0) == (found.difference > 0)
            if not each.differs or not same:
                break
            found = each
        return found.depth if found else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One run's rounds: a row per request that has any."""

    rounds: Rounds
    labels: NDArray[np.str_]
    """[rows]."""

    def of(self, rows: NDArray[np.bool_] | Codes) -> Side:
        """Some of the rows, or rows in an order."""
        return Side(rounds=self.rounds.where(rows), labels=self.labels[rows])


def compare(first: Sums, second: Sums, labels: tuple[str, str]) -> Comparison:
    """The comparison of two runs, called by `labels`; of the depths that both drafted.

    Raises MixedTraceError for runs that share no depth.
    """
    if not min(first.shape.k, second.shape.k):
        raise MixedTraceError(f"{labels[0]} and {labels[1]} have no drafted depth in common")
    a, b = side_of(first), side_of(second)
    there = [np.zeros(len(run.requests), dtype=np.bool_) for run in (first, second)]
    for mine, side in zip(there, (a, b), strict=True):
        mine[side.rounds.request] = True
    found = pair(first.requests, second.requests, *there)
    if found.how != UNPAIRED:
        a, b = a.of(_rows(a, found.first)), b.of(_rows(b, found.second))
    return comparison(a, b, labels, found)


def side_of(run: Sums) -> Side:
    """The rounds of a run, requests without any left out."""
    rounds = run.rounds.where(run.rounds.rounds > 0)
    labels = np.array([str(each) for each in run.requests.labels])[rounds.request]
    return Side(rounds=rounds, labels=labels)


def comparison(a: Side, b: Side, labels: tuple[str, str], pairing: Pairing) -> Comparison:
    """The comparison of two sides, whose rows are pairs unless the pairing is UNPAIRED."""
    paired = pairing.how != UNPAIRED
    return Comparison(
        first=labels[0],
        second=labels[1],
        pairing=pairing.how,
        pairs=len(pairing.first),
        alone=pairing.alone if paired else 0,
        requests=(len(a.labels), len(b.labels)),
        differences=together(_differences(a, b, paired)),
    )


def together(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """The same, tested together."""
    raw = tuple(differences)
    tested = [at for at, each in enumerate(raw) if each.p is not None]
    adjusted = dict(zip(tested, holm([raw[at].p or 0.0 for at in tested]), strict=True))
    return tuple(replace(each, p_adjusted=adjusted.get(at)) for at, each in enumerate(raw))


def _rows(side: Side, requests: Codes) -> Codes:
    """Which row each of `requests` is."""
    place = np.zeros(int(side.rounds.request.max()) + 1, dtype=np.int64)
    place[side.rounds.request] = np.arange(len(side.rounds.request))
    return place[requests]


def _differences(a: Side, b: Side, paired: bool) -> Iterator[Difference]:
    """Of all requests by depth, then of each label that both runs have; not of one that has all."""
    yield from _of(a, b, paired, WHOLE)
    shared = sorted(set(a.labels) & set(b.labels))
    for label in shared if len(set(a.labels) | set(b.labels)) > 1 else ():
        yield from _of(a.of(a.labels == label), b.of(b.labels == label), paired, label)


def _of(a: Side, b: Side, paired: bool, segment: str) -> Iterator[Difference]:
    k = min(a.rounds.k, b.rounds.k)
    ratios = figures_of(a.rounds, k), figures_of(b.rounds, k)
    gap, error, df = gap_of(*ratios, paired=paired)
    half, p = student(df) * error, p_values(gap, error, df)
    usable = [True, *_testable(a.rounds, b.rounds, k)]
    for depth in range(k + 1):
        known = usable[depth] and bool(np.isfinite(p[depth]))
        yield Difference(
            metric=MARGINAL if depth else LENGTH,
            depth=depth or None,
            segment=segment,
            first=float(ratios[0].value[depth]),
            second=float(ratios[1].value[depth]),
            difference=float(gap[depth]),
            interval=Interval(
                low=float(gap[depth] - half[depth]), high=float(gap[depth] + half[depth])
            )
            if known
            else None,
            p=float(p[depth]) if known else None,
            p_adjusted=None,
        )


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


def _testable(a: Rounds, b: Rounds, k: int) -> list[bool]:
    """By depth, whether enough requests have rounds on either side of the question."""
    some = sum((each.reached[:, :k] > 0).sum(axis=0) for each in (a, b))
    other = sum((each.reached[:, :k] < each.deep_enough[:, :k]).sum(axis=0) for each in (a, b))
    enough: list[bool] = (np.minimum(some, other) >= TESTABLE).tolist()
    return enough
