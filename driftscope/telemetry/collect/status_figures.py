"""Convert the status of a recording process into figures."""

from __future__ import annotations

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.tally import Tally
from driftscope.trace.format.status import DROP_CAUSES, HOOKS, Status


def record_status(tally: Tally, status: Status) -> None:
    """Record the counts of `status` in `tally`; fields that are absent or None are not set.

    Every known cause and hook is recorded, also at 0: Prometheus sees no rise in a series that
    begins above 0.
    """
    source = role_of(status.source)
    tally.set(i.UP, 1, source=source)
    for cause, count in {**dict.fromkeys(DROP_CAUSES, 0), **(status.dropped or {})}.items():
        tally.set(i.DROPPED, count, source=source, cause=cause)
    for hook, count in {**dict.fromkeys(HOOKS, 0), **(status.errors or {})}.items():
        tally.set(i.ERRORS, count, source=source, hook=hook)
    tally.set(i.PROBE_TIME, (status.probe_s or 0.0) + (status.writer_s or 0.0), source=source)
    if status.rate is not None:
        tally.set(i.RATE, status.rate, source=source)
    if status.overhead is not None:
        tally.set(i.PROBE_OVERHEAD, status.overhead, source=source)


def role_of(source: str) -> str:
    """Return the name of a source without its pid."""
    return source.rpartition("-")[0] or source
