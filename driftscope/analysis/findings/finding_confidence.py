"""Confidence in a finding, and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.findings.finding import Trust
from driftscope.analysis.number_words import count
from driftscope.analysis.statistics.interval import FEW_REQUESTS, Interval


def judged(
    requests: int,
    interval: Interval | None,
    *,
    above: float | None = None,
    below: float | None = None,
    assumed: Sequence[str] = (),
) -> tuple[Trust, str]:
    """Return the trust in a figure that lies `above` or `below` a threshold, from its 95% interval.

    Low: there is no interval, there are too few requests for one, or it contains the threshold.
    Medium: something had to be assumed. High: none of these, so that the interval lies clear of
    every threshold given.
    """
    if requests < FEW_REQUESTS:
        return Trust.LOW, f"only {count(requests, 'request')}: an interval cannot be relied on"
    if interval is None:
        return Trust.LOW, (
            f"{count(requests, 'request')}, but no 95% interval, as where one of them has most of "
            "the rounds"
        )
    clear = (above is None or interval.low > above) and (below is None or interval.high < below)
    if not clear:
        return Trust.LOW, "the 95% interval reaches over the threshold"
    if assumed:
        return Trust.MEDIUM, f"the 95% interval is clear of the threshold, but {assumed[0]}"
    return Trust.HIGH, (
        f"the 95% interval, of {count(requests, 'request')}, is clear of the threshold"
    )


def ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return the interval's ends as evidence for the figure `name`."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}
