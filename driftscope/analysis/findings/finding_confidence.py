"""Confidence in a finding, and the reason for it."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.findings.finding import Trust
from driftscope.analysis.number_words import count
from driftscope.analysis.statistics.intervals.cluster_ratio import FEW_CLUSTERS, LOW_CLUSTERS
from driftscope.analysis.statistics.intervals.interval import Interval


def judged(
    requests: int,
    interval: Interval | None,
    *,
    above: float | None = None,
    below: float | None = None,
    assumed: Sequence[str] = (),
) -> tuple[Trust, str]:
    """Return the trust in a figure that lies `above` or `below` a threshold, from its 95% interval.

    Low: there is no interval, it is over fewer than LOW_CLUSTERS clusters of requests, or it
    contains the threshold. Medium: it is over fewer than FEW_CLUSTERS, or something had to be
    assumed. High: none of these, so that the interval lies clear of every threshold given.
    """
    worth = requests if interval is None or interval.clusters is None else interval.clusters
    if worth < LOW_CLUSTERS:
        return Trust.LOW, f"only {_number_of(requests, interval)}: an interval cannot be relied on"
    if interval is None:
        return Trust.LOW, (
            f"{count(requests, 'request')}, but no 95% interval, for example because one of them "
            "has most of the rounds"
        )
    clear = (above is None or interval.low > above) and (below is None or interval.high < below)
    if not clear:
        return Trust.LOW, "the 95% interval contains the threshold"
    if worth < FEW_CLUSTERS:
        return Trust.MEDIUM, (
            "the 95% interval lies clear of the threshold, but is over only "
            f"{_number_of(requests, interval)}"
        )
    if assumed:
        return Trust.MEDIUM, f"the 95% interval lies clear of the threshold, but {assumed[0]}"
    return Trust.HIGH, (
        f"the 95% interval, over {count(requests, 'request')}, lies clear of the threshold"
    )


def _number_of(requests: int, interval: Interval | None) -> str:
    """Return in words how many requests an interval is over, and what they are worth."""
    if interval is None or interval.clusters is None or interval.clusters > 0.9 * requests:
        return count(requests, "request")
    return (
        f"{count(requests, 'request')} worth {interval.clusters:.0f} independent "
        f"{'one' if round(interval.clusters) == 1 else 'ones'}"
    )


def ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return the interval's ends as evidence for the figure `name`."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}
