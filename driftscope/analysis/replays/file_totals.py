"""Sums of another tool's file, which a run of `driftscope ingest -o` holds in place of rows of
requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Interval as Within
from annotated_types import MaxLen

from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.boundary.bounded_types import Count, DraftLength, Seconds, Share, Text
from driftscope.boundary.bounds import MAX_COUNT, MAX_K
from driftscope.trace.format.record_validation import validated

INGESTED, TOTALS = "ingested", "totals"
"""Keys of the sums below `Manifest.workload`."""
MOST_PARTS = 10_000
NO_INTERVAL = "aggregates: no interval"
"""Words for a figure of a file that has no rows of its requests."""
Length = Annotated[float, Within(ge=0.0, le=MAX_K + 1.0)]
Rate = Annotated[float, Within(ge=0.0, le=float(MAX_COUNT))]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotals:
    """Sums of one part of a file; None for what the file does not hold."""

    condition: Text
    """Part of the file, such as a benchmark or a category."""
    period: Text
    """Period that the figures of acceptance cover."""
    k: DraftLength | None = None
    requests: Count | None = None
    rounds: Count | None = None
    drafted: Count | None = None
    accepted: Count | None = None
    """Draft tokens that were accepted, without the target's own."""
    mean_length: Length | None = None
    """Acceptance length, over rounds."""
    mean_length_interval: Interval | None = None
    """95% interval over requests, for a file that lists requests without their rounds."""
    mean_length_by_request: Length | None = None
    """Mean of the requests' acceptance lengths."""
    marginal: Annotated[tuple[Share, ...], MaxLen(MAX_K)] | None = None
    """Share of the rounds accepted at least up to each depth, depth 1 first."""
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    throughput: Rate | None = None
    """Output tokens per second, of all requests together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    totals: Annotated[tuple[FileTotals, ...], MaxLen(MOST_PARTS)] = ()


def totals_of(workload: Mapping[str, Any]) -> tuple[FileTotals, ...]:
    """Return the sums that a manifest's workload holds; () for any other replay.

    Raises ValueError for sums that no driftscope writes.
    """
    ingested = workload.get(INGESTED)
    held = ingested.get(TOTALS) if isinstance(ingested, Mapping) else None
    return () if held is None else validated(_Parts, {TOTALS: held}).totals


def to_workload(totals: Sequence[FileTotals]) -> list[dict[str, Any]]:
    """Return the sums as plain values for a manifest. Raises ValueError for values out of
    bounds."""
    plain = [asdict(each) for each in totals]
    validated(_Parts, {TOTALS: plain})
    return plain
