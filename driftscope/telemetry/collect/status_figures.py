"""Convert the status of a recording process into figures."""

from __future__ import annotations

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.tally import Tally
from driftscope.trace.format.status import Status


def tell(tally: Tally, status: Status) -> None:
    """Record the counts of `status` in `tally`; fields that are absent or None are not set."""
    source = role_of(status.source)
    for cause, count in (status.dropped or {}).items():
        tally.set(i.DROPPED, count, source=source, cause=cause)
    if not status.dropped:  # a counter that exists from the start visibly rises
        tally.set(i.DROPPED, 0, source=source, cause="queue_full")
    for hook, count in (status.errors or {}).items():
        tally.set(i.ERRORS, count, source=source, hook=hook)
    tally.set(i.PROBE_TIME, (status.probe_s or 0.0) + (status.writer_s or 0.0), source=source)
    if status.rate is not None:
        tally.set(i.RATE, status.rate, source=source)
    if status.overhead is not None:
        tally.set(i.PROBE_OVERHEAD, status.overhead, source=source)


def role_of(source: str) -> str:
    """Return the name of a source without its pid."""
    return source.rpartition("-")[0] or source
