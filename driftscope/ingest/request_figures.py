"""Figures of a file that has one record per request."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import (
    RequestCounts,
    interval_of,
    marginal_of,
    mean_of,
    together,
)


def over_requests(
    requests: Sequence[RequestCounts],
    *,
    k: int | None = None,
    part: str = "",
    number: int | None = None,
    ttft_s: Sequence[float | None] = (),
    tpot_s: Sequence[float | None] = (),
    assumptions: tuple[str, ...] = (),
) -> Figures:
    """Return the sums over requests, the interval over them, and the means of their times.

    `number` counts the requests of the file, also those that did not speculate.
    """
    histograms = [each.histogram for each in requests if each.histogram is not None]
    whole = together(histograms) if len(histograms) == len(requests) else None
    drafted = [each.drafted for each in requests]
    return Figures(
        part=part,
        k=k,
        requests=len(requests) if number is None else number,
        rounds=sum(each.rounds for each in requests) if requests else None,
        accepted=sum(each.accepted for each in requests) if requests else None,
        drafted=sum(each for each in drafted if each is not None)
        if drafted and None not in drafted
        else None,
        length_interval=interval_of(requests),
        length_by_request=mean_of(requests),
        marginal=marginal_of(whole) or None if whole is not None else None,
        ttft_s=_mean(ttft_s or [each.ttft_s for each in requests]),
        tpot_s=_mean(tpot_s or [each.tpot_s for each in requests]),
        single=tuple(requests),
        assumptions=assumptions,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
