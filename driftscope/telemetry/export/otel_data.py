"""Convert figures to OpenTelemetry's data model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from driftscope.telemetry.collect.instruments import COUNTER, DEPTH, GAUGE, INSTRUMENTS
from driftscope.telemetry.collect.tally import Exemplar, Point, Snapshot
from driftscope.version import __version__

SCOPE = InstrumentationScope("driftscope", __version__)


def metrics_data(
    snapshot: Snapshot,
    *,
    resource: Resource,
    constants: Mapping[str, str],
    start_s: float,
    time_s: float,
    delta: bool = False,
) -> MetricsData:
    """Return `snapshot` as one export; `constants` are attributes of every point."""
    by_name: defaultdict[str, list[Point]] = defaultdict(list)
    for point in snapshot.values():
        by_name[point.name].append(point)
    kind = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
    when: dict[str, Any] = {"start_time_unix_nano": nano(start_s), "time_unix_nano": nano(time_s)}
    metrics = [_metric(name, points, constants, when, kind) for name, points in by_name.items()]
    scoped = ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url="")
    whole = ResourceMetrics(resource=resource, scope_metrics=[scoped], schema_url="")
    return MetricsData(resource_metrics=[whole])


def nano(seconds: float) -> int:
    """Return Unix time in nanoseconds."""
    return int(seconds * 1_000_000) * 1000


def _metric(
    name: str,
    points: Sequence[Point],
    constants: Mapping[str, str],
    when: Mapping[str, Any],
    kind: AggregationTemporality,
) -> Metric:
    instrument = INSTRUMENTS[name]
    data: Sum | Gauge | Histogram
    if instrument.kind == COUNTER:
        data = Sum([_number(p, constants, when) for p in points], kind, is_monotonic=True)
    elif instrument.kind == GAUGE:
        data = Gauge([_number(p, constants, when) for p in points])
    else:
        data = Histogram([_histogram(p, constants, when) for p in points], kind)
    return Metric(name, instrument.description, instrument.unit, data)


def _number(point: Point, constants: Mapping[str, str], when: Mapping[str, Any]) -> NumberDataPoint:
    value = point.value
    return NumberDataPoint(
        attributes=_attributes(point, constants),
        value=int(value) if value == int(value) and point.instrument.unit != "s" else value,
        **when,
    )


def _histogram(
    point: Point, constants: Mapping[str, str], when: Mapping[str, Any]
) -> HistogramDataPoint:
    unknown: Any = None  # min and max are optional in OTLP, but not in the SDK's types
    return HistogramDataPoint(
        attributes=_attributes(point, constants),
        count=point.count,
        sum=point.value,
        bucket_counts=point.buckets,
        explicit_bounds=point.instrument.bounds,
        min=unknown,
        max=unknown,
        exemplars=[] if point.exemplar is None else [_exemplar(point.exemplar)],
        **when,
    )


def _attributes(point: Point, constants: Mapping[str, str]) -> dict[str, str | int]:
    own = {name: int(v) if name == DEPTH else v for name, v in point.attributes}
    return {**constants, **own}


def _exemplar(exemplar: Exemplar) -> OtelExemplar:
    return OtelExemplar(
        filtered_attributes={},
        value=exemplar.value,
        time_unix_nano=nano(exemplar.time_s),
        span_id=exemplar.span_id,
        trace_id=exemplar.trace_id,
    )
