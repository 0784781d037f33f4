"""Comparison of the times of two runs of which one does not speculate, request by request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from driftscope.analysis.compare.run_comparison import (
    WHOLE,
    Comparison,
    Difference,
    p_values,
    together,
)
from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.figures.side import UNPAIRED, pair
from driftscope.analysis.query.column_arrays import Codes, Matrix
from driftscope.analysis.statistics.clusters import ratio_over
from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio, ratio_of
from driftscope.analysis.statistics.intervals.degrees_of_freedom import student
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.statistics.joint_difference import gap_of
from driftscope.errors import NoDataError

TPOT, TTFT = "latency.tpot_s", "latency.ttft_s"


def compare_times(first: Requests, second: Requests, labels: tuple[str, str]) -> Comparison:
    """Compare the requests of two runs; requests without a time per output token are left out.

    Raises NoDataError if a run has no finished request with such a time.
    """
    runs = (first, second)
    timed = [np.isfinite(run.tpot_s) for run in runs]
    for label, mine in zip(labels, timed, strict=True):
        if not mine.any():
            raise NoDataError(f"{label}: no finished request in it whose time per token is known")
    pairing = pair(first, second, *timed)
    paired = pairing.how != UNPAIRED
    rows = (pairing.first, pairing.second) if paired else tuple(each.nonzero()[0] for each in timed)
    units = [run.units.unit[mine] for run, mine in zip(runs, rows, strict=True)]
    spans = [_some(run.spans, mine) for run, mine in zip(runs, rows, strict=True)]
    if paired:
        units, spans = [units[0], units[0]], [spans[0], spans[0]]
    values = {
        name: [getattr(run, column)[mine] for run, mine in zip(runs, rows, strict=True)]
        for name, column in ((TPOT, "tpot_s"), (TTFT, "ttft_s"))
    }
    return Comparison(
        first=labels[0],
        second=labels[1],
        pairing=pairing.how,
        pairs=len(pairing.first),
        alone=pairing.alone if paired else 0,
        requests=(len(rows[0]), len(rows[1])),
        differences=together(_differences(values, (units, spans), paired)),
    )


def _some(spans: Codes | None, mine: Codes) -> Codes | None:
    return None if spans is None else spans[mine]


def _differences(
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
            both = [_difference(name, each, paired) for each in means if len(each) == 2]
            yield max(both, key=_width)


def _width(difference: Difference) -> float:
    interval = difference.interval
    return 0.0 if interval is None else interval.high - interval.low


def _mean(values: Matrix, unit: Codes) -> Ratio:
    """Return the mean over requests, with its influences over units."""
    column = values[:, None]
    return ratio_over(ratio_of, (column, np.ones_like(column)), unit)


def _difference(name: str, means: list[Ratio], paired: bool) -> Difference:
    gap, error, df = gap_of(*means, paired=paired)
    half, p = student(df) * error, p_values(gap, error, df)
    known = bool(np.isfinite(p[0]))
    return Difference(
        metric=name,
        depth=None,
        segment=WHOLE,
        first=float(means[0].value[0]),
        second=float(means[1].value[0]),
        difference=float(gap[0]),
        interval=Interval.of(float((gap - half)[0]), float((gap + half)[0])) if known else None,
        p=float(p[0]) if known else None,
        p_adjusted=None,
    )
