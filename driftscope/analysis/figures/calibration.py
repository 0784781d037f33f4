"""Whether the drafter's confidence predicts acceptance: by depth, by kind of text, and over time.

A row is one depth of one round that verification reached: its outcome is whether the token was
accepted, its score the drafter's confidence in it. Intervals are over clusters of requests. The
chains are those of `verified_chains.internals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.random import RandomState
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Codes, Matrix, floats, ranked, whole
from driftscope.analysis.statistics.changes import RequestSeries, largest_split, step_ratio
from driftscope.analysis.statistics.intervals import Interval, student
from driftscope.analysis.statistics.ratio import intervals, rate_intervals, ratio_of
from driftscope.metrics.confidence import (
    BINS,
    brier_parts,
    calibration_error,
    fitted_slope,
    logit_of,
    placements,
)

FEWEST_CLUSTERS = 10
"""Smallest number of clusters for an interval, and of tokens of either outcome."""
SEED = 20261128
_GROUPS_LEAST = 10
"""Fewest tokens of a kind of text that is listed, per cluster of FEWEST_CLUSTERS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Verified tokens of one depth and similar confidence."""

    depth: int
    tokens: int
    confidence: float
    """Mean confidence of the tokens."""
    accepted: float
    """Share of the tokens that the target accepted."""
    accepted_interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How confidence predicts acceptance over some tokens; see `driftscope.metrics.confidence`."""

    tokens: int
    """Tokens that verification reached."""
    confidence: float
    accepted: float
    bias: float
    """Mean confidence minus the share accepted."""
    bias_interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationAtDepth(Calibration):
    """How confidence predicts acceptance at one depth."""

    depth: int
    ece: float
    survival_ece: float
    """Calibration error of the product of the confidences up to this depth."""
    auroc: float | None
    """None if all tokens had one outcome, as for the next four."""
    auroc_interval: Interval | None
    temperature: float | None
    temperature_interval: Interval | None
    brier: float
    brier_reliability: float
    brier_resolution: float
    brier_uncertainty: float
    brier_rest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOfKind(Calibration):
    """How confidence predicts acceptance of one kind of text, or label."""

    kind: str
    wasted: float
    """Share of the draft tokens that were verified and thrown away, also after a rejected one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationShift:
    """The moment at which confidence minus acceptance changes most, at equal kinds of text."""

    time_s: float
    """Time of the first request after it, in seconds since the Unix epoch."""
    before: float
    """Confidence minus acceptance before it."""
    after: float
    moved: float
    """Change at equal kinds and depths."""
    interval: Interval | None
    p: float
    """Share of random orders of the requests with a change as large."""


THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedAt:
    """Rounds verified only up to the first token with less confidence than a threshold.

    What is drafted after a cut was not recorded. Two assumptions have the truth between them: the
    next draft is that of the next recorded round, which begins in easier text, or what is left of
    the same draft, which is less sure than a new one. The figures are their mean.
    """

    threshold: float
    verified: float
    """Draft tokens verified per round."""
    mean_length: float
    mean_length_interval: Interval | None
    off: float
    """Relative distance of either assumption from `mean_length`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrations:
    """Calibration of a run's drafter."""

    by_depth: tuple[CalibrationAtDepth, ...] = ()
    by_kind: tuple[CalibrationOfKind, ...] = ()
    """By kind of text where it is recorded, else by label; () if there is one kind only."""
    reliability: tuple[ReliabilityBin, ...] = ()
    """Bins by depth and rising confidence; bins without a token are left out."""
    shift: CalibrationShift | None = None
    """None with too few requests."""
    trimmed: tuple[TrimmedAt, ...] = ()
    """By rising threshold, of rounds that verified K tokens; () without such rounds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """Rounds with their confidences, arrays of [rounds] each."""

    request: Codes
    """Number of each round's request."""
    cluster: Codes
    accepted: Codes
    drawn: Codes
    """Tokens that were verified."""
    sure: Matrix
    """Confidence by depth, [rounds, depths]."""
    time_s: Matrix
    kind: NDArray[np.str_] = field(default_factory=lambda: np.empty(0, dtype=np.str_))
    """Kind of text of each round, or label; empty if not known."""


NONE = Calibrations()
"""Calibration of a run without confidences."""


def scored_of(
    chains: pa.Table,
    sure: Matrix,
    clusters: Codes,
    labels: NDArray[np.str_],
    regions: pa.Table | None,
) -> Scored:
    """Return the rounds of `chains`, rows of `verified_chains.internals`; `clusters` and `labels`
    are those of all requests, `regions` rows of `verified_chains.regions_of_rounds`."""
    request, position = whole(chains, "cluster"), whole(chains, "position")
    kind = labels[request]
    if regions is not None and regions.num_rows:
        of = whole(regions, "cluster"), whole(regions, "position")
        span = int(max(position.max(initial=0), of[1].max(initial=0))) + 1
        known = of[0] * span + of[1]
        order = np.argsort(known, kind="stable")
        at = np.searchsorted(known[order], request * span + position)
        at = order[np.minimum(at, len(known) - 1)]
        found = known[at] == request * span + position
        names = np.array(regions.column("region").to_pylist(), dtype=np.str_)
        kind = np.where(found, names[at], "not recorded")
    return Scored(
        request=request,
        cluster=clusters[request],
        accepted=whole(chains, "accepted"),
        drawn=whole(chains, "drawn"),
        sure=sure,
        time_s=floats(chains, "drafted_s"),
        kind=kind,
    )


def calibrations(rounds: Scored) -> Calibrations:
    """Return the calibration of some rounds."""
    depths = rounds.sure.shape[1]
    tested = np.arange(depths) < rounds.drawn[:, None]
    finite = np.isfinite(rounds.sure)
    reached = tested & (np.arange(depths) <= rounds.accepted[:, None]) & finite
    if not reached.any():
        return NONE
    at_round, depth = np.nonzero(reached)
    sure = rounds.sure[reached]
    hit = rounds.accepted[at_round] > depth
    cluster = ranked(rounds.cluster)[1][at_round]
    product = np.cumprod(np.where(finite, rounds.sure, np.nan), axis=1)
    whole_chain = [tested[:, at] & np.isfinite(product[:, at]) for at in range(depths)]
    found: list[CalibrationAtDepth] = []
    bins: list[ReliabilityBin] = []
    for at in range(depths):
        here = depth == at
        if not here.any():
            continue
        known = whole_chain[at]
        kept, n = product[known, at], int(known.sum())
        weights = (np.ones(n), kept, rounds.accepted[known] > at)
        counted = [_counted(_bin_of(kept), weight, BINS) for weight in weights]
        survival = calibration_error(*counted) or 0.0
        found.append(_at_depth(at + 1, sure[here], hit[here], cluster[here], survival))
        bins += _bins(at + 1, sure[here], hit[here], cluster[here])
    kinds: list[CalibrationOfKind] = []
    names = np.unique(rounds.kind).tolist()
    for name in names if len(names) > 1 else ():
        of = rounds.kind == name
        here = of[at_round]
        if here.sum() >= FEWEST_CLUSTERS * _GROUPS_LEAST:
            wasted = 1.0 - float(rounds.accepted[of].sum() / rounds.drawn[of].sum())
            base = _base(sure[here], hit[here], rounds.cluster[at_round][here])
            kinds.append(CalibrationOfKind(kind=name, wasted=wasted, **base))  # type: ignore[arg-type]
    return Calibrations(
        by_depth=tuple(found),
        by_kind=tuple(kinds),
        reliability=tuple(bins),
        shift=_shift(rounds, at_round, depth, sure - hit),
        trimmed=tuple(_trimmed(rounds)),
    )


def _trimmed(rounds: Scored) -> Iterator[TrimmedAt]:
    """Yield what each threshold would have verified and accepted."""
    depths = rounds.sure.shape[1]
    whole_rounds = (rounds.drawn == depths) & np.isfinite(rounds.sure).all(axis=1)
    if not whole_rounds.any():
        return
    accepted, cluster = rounds.accepted[whole_rounds], rounds.cluster[whole_rounds]
    for threshold in THRESHOLDS:
        sure = rounds.sure[whole_rounds] >= threshold
        first = np.minimum.accumulate(sure, axis=1).sum(axis=1)
        # The rounds that serve the tokens of each round if what is left of a draft after a cut is
        # verified in the next one, and the draft tokens verified in them.
        ahead = np.zeros((len(sure), depths + 1), dtype=np.int64)
        for depth in range(depths - 1, -1, -1):
            ahead[:, depth] = np.where(sure[:, depth], ahead[:, depth + 1] + 1, 0)
        at, row = np.zeros(len(sure), dtype=np.int64), np.arange(len(sure))
        number, all_verified = np.zeros(len(sure)), np.zeros(len(sure))
        while (going := at <= accepted).any():
            here = ahead[row, np.minimum(at, depths)]
            number += going
            all_verified += np.where(going, here, 0)
            at = np.where(going, at + np.minimum(accepted - at, here) + 1, at)
        once = 1.0 + np.minimum(first, accepted)
        lengths = float(once.mean()), float((1.0 + accepted).sum() / number.sum())
        spread = intervals(ratio_of(*_counts_by_cluster(cluster, once, np.ones(len(once)))))
        middle = sum(lengths) / 2.0
        moved = spread[0] if spread else None
        yield TrimmedAt(
            threshold=threshold,
            verified=float(first.mean() + all_verified.sum() / number.sum()) / 2.0,
            mean_length=middle,
            mean_length_interval=moved
            and Interval.between(moved.low * middle / lengths[0], moved.high * middle / lengths[0]),
            off=lengths[0] / middle - 1.0,
        )


def _counted(code: Codes, weight: Matrix | NDArray[np.bool_], least: int = 0) -> Matrix:
    return np.bincount(code, weight, least).astype(np.float64)


def _bin_of(sure: Matrix) -> Codes:
    return np.minimum((sure * BINS).astype(np.int64), BINS - 1)


def _counts_by_cluster(cluster: Codes, *columns: Matrix) -> list[Matrix]:
    code = ranked(cluster)[1]
    return [_counted(code, column)[:, None] for column in columns]


def _base(sure: Matrix, hit: NDArray[np.bool_], cluster: Codes) -> dict[str, object]:
    off, n = _counts_by_cluster(cluster, sure - hit, np.ones(len(sure)))
    spread = intervals(ratio_of(off, n)) if len(n) >= FEWEST_CLUSTERS else None
    return {
        "tokens": len(sure),
        "confidence": float(sure.mean()),
        "accepted": float(hit.mean()),
        "bias": float(sure.mean() - hit.mean()),
        "bias_interval": spread[0] if spread else None,
    }


def _at_depth(
    depth: int, sure: Matrix, hit: NDArray[np.bool_], cluster: Codes, survival: float
) -> CalibrationAtDepth:
    at = _bin_of(sure)
    sums = [_counted(at, w, BINS) for w in (np.ones(len(sure)), sure, hit)]
    has_rounds = sums[0] > 0
    score = float(np.square(sure - hit).mean())
    tokens, sure_of, accepted = (column[has_rounds] for column in sums)
    parts = brier_parts(tokens, sure_of, accepted, score)
    auroc, auroc_interval = _auroc(sure, hit, cluster)
    temperature, temperature_interval = _temperature(sure, hit, cluster)
    return CalibrationAtDepth(
        **_base(sure, hit, cluster),  # type: ignore[arg-type]
        depth=depth,
        ece=calibration_error(*sums) or 0.0,
        survival_ece=survival,
        auroc=auroc,
        auroc_interval=auroc_interval,
        temperature=temperature,
        temperature_interval=temperature_interval,
        brier=score,
        brier_reliability=parts[0],
        brier_resolution=parts[1],
        brier_uncertainty=parts[2],
        brier_rest=parts[3],
    )


def _enough(hit: NDArray[np.bool_], cluster: Codes) -> bool:
    rare = min(int(hit.sum()), int((~hit).sum()))
    return rare >= FEWEST_CLUSTERS and len(np.unique(cluster)) >= FEWEST_CLUSTERS


def _half(influence: Matrix, weight: Matrix) -> float:
    """Return half of a 95 % interval from each cluster's influence on an estimate."""
    share = weight / weight.sum()
    df = 1.0 / np.square(share).sum() - 1.0
    n = len(influence)
    return float(student(df) * np.sqrt(n / (n - 1) * np.square(influence).sum()))


def _auroc(
    sure: Matrix, hit: NDArray[np.bool_], cluster: Codes
) -> tuple[float | None, Interval | None]:
    if hit.all() or not hit.any():
        return None, None
    place = placements(sure, hit)
    value = float(place[hit].mean())
    if not _enough(hit, cluster) or not 0.0 < value < 1.0:
        return value, None
    shares = (place - value) / np.where(hit, hit.sum(), (~hit).sum())
    influence, weight = _counts_by_cluster(cluster, shares, np.ones(len(sure)))
    half = _half(influence, weight) / (value * (1.0 - value))
    odds = np.log(value / (1.0 - value)) + half * np.array([-1.0, 1.0])
    low, high = (1.0 / (1.0 + np.exp(-odds))).tolist()
    return value, Interval.between(low, high)


def _temperature(
    sure: Matrix, hit: NDArray[np.bool_], cluster: Codes
) -> tuple[float | None, Interval | None]:
    """Return the fitted temperature; its interval is that of its inverse, with errors over clusters
    (White 1982), and None if the confidence may tell nothing."""
    if not _enough(hit, cluster):
        return None, None
    logit = logit_of(sure)
    slope = fitted_slope(logit, hit.astype(np.float64))
    chance = 1.0 / (1.0 + np.exp(-slope * logit))
    curvature = float((chance * (1.0 - chance) * logit * logit).sum())
    if not slope > 0 or not curvature > 0:
        return None, None
    influence, weight = _counts_by_cluster(
        cluster, (hit - chance) * logit / curvature, np.ones(len(sure))
    )
    half = _half(influence, weight)
    if slope - half <= 0:
        return 1.0 / slope, None
    return 1.0 / slope, Interval.between(1.0 / (slope + half), 1.0 / (slope - half))


def _bins(
    depth: int, sure: Matrix, hit: NDArray[np.bool_], cluster: Codes
) -> Iterator[ReliabilityBin]:
    at = _bin_of(sure)
    for number in np.unique(at).tolist():
        in_bin = at == number
        accepted, n = _counts_by_cluster(
            cluster[in_bin], hit[in_bin].astype(np.float64), np.ones(int(in_bin.sum()))
        )
        spread = rate_intervals(ratio_of(accepted, n))
        yield ReliabilityBin(
            depth=depth,
            tokens=int(in_bin.sum()),
            confidence=float(sure[in_bin].mean()),
            accepted=float(hit[in_bin].mean()),
            accepted_interval=spread[0] if spread else None,
        )


def _shift(rounds: Scored, at_round: Codes, depth: Codes, off: Matrix) -> CalibrationShift | None:
    """Return the change of confidence minus acceptance over the requests, in order of their first
    round. Depths and kinds of text that are off by different amounts are no change: each request is
    compared with the mean of its own depths and kinds."""
    n = np.ones(len(off))
    kind = rounds.kind[at_round] if len(rounds.kind) else np.zeros(len(off), dtype=np.str_)
    _, cell = np.unique(np.char.add(kind, depth.astype(np.str_)), return_inverse=True)
    means = np.bincount(cell, off) / np.bincount(cell, n)
    left = off - means[cell]
    numbers, request = ranked(rounds.request[at_round])
    start = np.full(len(numbers), np.inf)
    np.minimum.at(start, request, rounds.time_s[at_round])
    unit = np.zeros(len(numbers), dtype=np.int64)
    unit[request] = rounds.cluster[at_round]
    order = np.argsort(start, kind="stable")
    sums = [_counted(request, column)[order] for column in (left, off, n)]
    given = RequestSeries(tokens=sums[0], rounds=sums[2], cluster=unit[order])
    split = largest_split(given, RandomState(SEED))
    if split is None or not 0 < split.at < len(order):
        return None
    after = (np.arange(len(order)) >= split.at).astype(np.float64)
    step = step_ratio(sums[0], sums[2], unit[order], after)
    spread = None if step is None else intervals(step)
    sides = [float(sums[1][at].sum() / sums[2][at].sum()) for at in (after == 0, after == 1)]
    return CalibrationShift(
        time_s=float(start[order][split.at]),
        before=sides[0],
        after=sides[1],
        moved=sides[1] - sides[0] if step is None else float(step.value[0]),
        interval=spread[0] if spread else None,
        p=split.p,
    )
