"""Comparison of the times of two runs of which one does not speculate, request by request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftscope.analysis.compare.run_comparison import (
    WHOLE,
    Comparison,
    Difference,
    gap_of,
    p_values,
    together,
)
from driftscope.analysis.figures.request_codes import Requests
from driftscope.analysis.figures.request_pairing import UNPAIRED, pair
from driftscope.analysis.query.column_arrays import Matrix
from driftscope.analysis.statistics.interval import Interval, ratio_of, student
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
    found = pair(first, second, *timed)
    paired = found.how != UNPAIRED
    rows = (found.first, found.second) if paired else tuple(each.nonzero()[0] for each in timed)
    values = {
        name: [getattr(run, column)[mine] for run, mine in zip(runs, rows, strict=True)]
        for name, column in ((TPOT, "tpot_s"), (TTFT, "ttft_s"))
    }
    return Comparison(
        first=labels[0],
        second=labels[1],
        pairing=found.how,
        pairs=len(found.first),
        alone=found.alone if paired else 0,
        requests=(len(rows[0]), len(rows[1])),
        differences=together(_differences(values, paired)),
    )


def _differences(values: dict[str, list[Matrix]], paired: bool) -> Iterator[Difference]:
    for name, (a, b) in values.items():
        known = [np.isfinite(a), np.isfinite(b)]
        if paired:
            known = [known[0] & known[1]] * 2
        a, b = a[known[0]], b[known[1]]
        if len(a) and len(b):
            yield _difference(name, a, b, paired)


def _difference(name: str, a: Matrix, b: Matrix, paired: bool) -> Difference:
    means = [ratio_of(each[:, None], np.ones((len(each), 1))) for each in (a, b)]
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
