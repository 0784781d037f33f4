"""Export a recorded run with its original timestamps."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.boundary.bounds import MAX_UNIX_S
from driftscope.boundary.http_peer import Deadline, within
from driftscope.errors import DamagedTraceError, NoDataError, TelemetryError, UsageError
from driftscope.telemetry import instruments as i
from driftscope.telemetry.count import (
    BadRowError,
    BatchCounter,
    Finished,
    RequestLog,
    record_status,
)
from driftscope.telemetry.engine import Identity
from driftscope.telemetry.export import capture_exporter_errors
from driftscope.telemetry.instruments import Key, Point, Tally, difference
from driftscope.telemetry.settings import Settings
from driftscope.trace.ranks import place_of
from driftscope.trace.reader import Trace

if TYPE_CHECKING:
    from driftscope.telemetry.export import Spans

DEFAULT_INTERVAL_S = 10.0
"""Run time between two points of a series, in seconds."""
SEND_S = 5.0
"""Time within which a collector must accept a batch, in seconds. If nobody answers, OpenTelemetry's
exporters retry within it, after 1 and 3 seconds."""
SEND_VARIABLE = "OTEL_EXPORTER_OTLP_TIMEOUT"
"""Variable that gives a slower collector more seconds."""
SEND_SLACK_S = 1.0
"""Time that an exporter may take beyond its timeout before it is abandoned, in seconds."""
MAX_MOMENTS = 16_384
"""Most points of a series: two days at the default interval."""
_RECORDS = ("draft", "verify", "step", "request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Figures of an engine at `time_s`, and the requests that finished since the previous
    moment."""

    time_s: float
    points: dict[Key, Point]
    finished: tuple[Finished, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Figures and identity of one replica of a run."""

    identity: Identity
    start_s: float
    moments: tuple[Moment, ...]
    counter: BatchCounter


def replays(
    trace: Trace,
    *,
    interval_s: float = DEFAULT_INTERVAL_S,
    labels: tuple[str, ...] = (),
    regions: bool = False,
) -> Iterator[Replay]:
    """Yield every data-parallel replica of `trace`, with rounds by kind of text if `regions`; raise
    NoDataError for a run without a row."""
    tables = [getattr(trace, name) for name in _RECORDS]
    replicas = {r for table in tables for r in table.column("replica").unique().to_pylist()}
    if not replicas:
        raise NoDataError(f"{trace.path}: nothing was recorded, so there is nothing to export")
    for replica in sorted(replicas):
        try:
            yield _replay(trace, replica, interval_s, labels, regions=regions)
        except BadRowError as error:
            raise DamagedTraceError(f"{trace.path}: {error}") from error


def _replay(
    trace: Trace, replica: int, interval_s: float, labels: tuple[str, ...], *, regions: bool
) -> Replay:
    manifest = trace.manifest
    tally = Tally()
    # Keep every notable chain: nothing reads the list before the run ends.
    counter = BatchCounter(tally=tally)
    counter.notable = type(counter.notable)()
    log = RequestLog(tally, labels, regions=regions)
    tally.set(i.CONFIGURED_K, manifest.k)
    tally.set(i.SIMULATED, int(manifest.is_simulated))
    tables = {name: _sorted(getattr(trace, name), replica) for name in _RECORDS}
    times = {name: _times(table) for name, table in tables.items()}
    every = np.concatenate(list(times.values()))
    if not ((every >= 0) & (every <= MAX_UNIX_S)).all():  # NaN fails both comparisons
        raise DamagedTraceError(
            f"{trace.path}: a row's time_s is not a Unix time up to the year 2242"
        )
    start_s, end_s = float(every.min()), float(every.max())
    moments, last = [], dict.fromkeys(_RECORDS, 0)
    for until_s in _until(every, interval_s):
        done: list[Finished] = []
        for name in _RECORDS:
            upto = int(np.searchsorted(times[name], until_s, side="right"))
            part, last[name] = tables[name].slice(last[name], upto - last[name]), upto
            for batch in part.combine_chunks().to_batches():
                counter.take(name, batch)
                if name == "verify":
                    log.verified(batch)
                elif name == "request":
                    done += log.finished(batch)
        if until_s >= end_s:
            _statuses(trace, replica, tally)
        moments.append(Moment(time_s=until_s, points=tally.snapshot(), finished=tuple(done)))
    identity = Identity(manifest=manifest, model=manifest.target.name, replica=replica)
    return Replay(identity=identity, start_s=start_s, moments=tuple(moments), counter=counter)


def _statuses(trace: Trace, replica: int, tally: Tally) -> None:
    for status in trace.statuses:
        if (place_of(status.source).replica or 0) == replica:
            record_status(tally, status)


def _sorted(table: pa.Table, replica: int) -> pa.Table:
    mine = np.flatnonzero(table.column("replica").to_numpy() == replica)
    order = np.argsort(_times(table)[mine], kind="stable")
    return table.take(pa.array(mine[order]))


def _times(table: pa.Table) -> Any:
    return np.asarray(table.column("time_s").to_numpy(), dtype=np.float64)


def _until(times: NDArray[np.float64], interval_s: float) -> Iterator[float]:
    """Yield the end of each interval that has a row or precedes one that has; the last is the
    run's.

    An interval without a row changes no figure. The interval before the next row keeps the figures
    flat until then, so that the next increase is not spread over the pause. Raises UsageError for
    more than MAX_MOMENTS.
    """
    start_s, end_s = float(times.min()), float(times.max())
    filled = np.unique(np.floor((times - start_s) / interval_s))
    numbers = np.unique(np.concatenate([filled, filled[1:] - 1]))
    if len(numbers) > MAX_MOMENTS:
        needed = math.ceil((end_s - start_s) / MAX_MOMENTS)
        raise UsageError(
            f"--interval {interval_s:g}: {len(numbers):,} points of each series, at most "
            f"{MAX_MOMENTS:,}; give --interval {needed}"
        )
    for number in numbers.tolist():
        until_s = start_s + (number + 1) * interval_s
        if until_s < end_s:
            yield until_s
    yield end_s


def send(replay: Replay, settings: Settings) -> tuple[int, int]:
    """Send a replica's figures and spans; return the numbers of batches and spans accepted.

    Raises TelemetryError when the collector does not accept a batch within SEND_S, or within the
    time that SEND_VARIABLE gives.
    """
    from driftscope.telemetry.export import metric_exporter, span_exporter

    batches, spans, seconds = 0, 0, _send_s()
    if (to := metric_exporter(settings, seconds)) is not None:
        for data in _metrics(replay, delta=settings.temporality != "cumulative"):
            _taken(lambda data=data: to.export(data), seconds)  # type: ignore[misc]
            batches += 1
        to.shutdown()
    if (to_spans := span_exporter(settings, seconds)) is not None:
        made = _spans(replay)
        while several := made.take(settings.span_batch):
            _taken(lambda several=several: to_spans.export(several), seconds)  # type: ignore[misc]
            made.sent(len(several))
            spans += len(several)
        to_spans.shutdown()
    return batches, spans


def _metrics(replay: Replay, *, delta: bool) -> Iterator[Any]:
    from driftscope.telemetry.export import metrics_data

    start_s, before = replay.start_s, dict[Key, Point]()
    resource, constants = replay.identity.resource(), replay.identity.attributes
    for moment in replay.moments:
        points = difference(moment.points, before) if delta else moment.points
        yield metrics_data(
            points,
            resource=resource,
            constants=constants,
            start_s=start_s,
            time_s=moment.time_s,
            delta=delta,
        )
        if delta:
            start_s, before = moment.time_s, moment.points


def _spans(replay: Replay) -> Spans:
    from driftscope.telemetry.export import Spans

    done = [item for moment in replay.moments for item in moment.finished]
    spans = Spans(queue=len(done) or 1)
    spans.start(replay.identity.resource(), replay.identity.attributes)
    by_request: dict[str, list[Any]] = {}
    for chain in replay.counter.notable:
        by_request.setdefault(chain.request, []).append(chain)
    for item in done:
        spans.note(by_request.get(item.row["request"], ()))
        spans.add(item)
    return spans


def _send_s() -> float:
    given = os.environ.get(SEND_VARIABLE, "").strip()
    try:
        seconds = float(given or SEND_S)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise TelemetryError(f"{SEND_VARIABLE}={given}: give a number of seconds above 0")
    return seconds


def _taken(export: Callable[[], Any], seconds: float) -> None:
    with capture_exporter_errors() as errors:
        try:
            done: bool = within(Deadline(seconds + SEND_SLACK_S), export).name == "SUCCESS"
        except TimeoutError:
            done = False
    if not done:
        raise TelemetryError(
            f"the collector did not accept a batch within {seconds:g} s "
            f"({errors.first or 'no reason given'}); check its URL and that it runs; "
            f"{SEND_VARIABLE} allows it more seconds"
        )


def to_openmetrics(replays: Sequence[Replay]) -> str:
    """Return the runs as OpenMetrics text with their timestamps."""
    from driftscope.telemetry.prometheus import families_text

    return families_text(
        [
            (
                [(moment.time_s, moment.points) for moment in replay.moments],
                {
                    **replay.identity.attributes,
                    **(
                        {"driftscope.replica": str(replay.identity.replica)}
                        if len(replays) > 1
                        else {}
                    ),
                },
            )
            for replay in replays
        ]
    )
