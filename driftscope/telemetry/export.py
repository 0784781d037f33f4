"""Figures and spans to a collector: OpenTelemetry's data, exporters and their errors, and retries.

There is one span per finished request, with events for its rejected rounds and drifted chains.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from driftscope.errors import TelemetryError
from driftscope.telemetry import instruments as i
from driftscope.telemetry.count import Finished, NotableChain, error_of, operation_of
from driftscope.telemetry.instruments import (
    COUNTER,
    DEPTH,
    GAUGE,
    INSTRUMENTS,
    Exemplar,
    Key,
    Point,
    Snapshot,
    Tally,
    full_attributes,
)
from driftscope.telemetry.settings import GRPC, ExportSettings, Signal
from driftscope.version import __version__

SCOPE = InstrumentationScope("driftscope", __version__, i.SCHEMA_URL)
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
"""Bounds of the back-off after a failure, in seconds. It doubles from the first to the last and
never exceeds the interval of the signal."""
REJECTED_EVENT = "driftscope.chain.rejected"
DRIFTED_EVENT = "driftscope.chain.drifted"
CHAINS_PER_REQUEST = 8
"""Most chains that drifted hard in one request's span."""
REMEMBERED_REQUESTS = 4096
"""Most requests whose drifted chains are kept until the request finishes."""


class SignalExport:
    """Schedule of the exports of one signal, METRICS or TRACES, and their count in `health`."""

    def __init__(self, signal: str, health: Tally, interval_s: float) -> None:
        self._signal, self._health, self._interval_s = signal, health, interval_s
        self._failures, self._taken_s = 0, time.monotonic()
        self._due_s = self._taken_s + interval_s

    def is_due(self) -> bool:
        """Return whether an export is due."""
        return time.monotonic() >= self._due_s

    def behind_s(self) -> float:
        """Return the time since the last accepted batch, or since the start, in seconds."""
        return time.monotonic() - self._taken_s

    def note(self, accepted: bool) -> None:
        """Note that a collector accepted a batch, or that it was rejected or nobody answered."""
        outcome = "success" if accepted else "failure"
        self._health.add(i.EXPORTS, 1, signal=self._signal, outcome=outcome)
        if accepted:
            self.rest()
            return
        wait_s = min(FIRST_RETRY_S * 2.0**self._failures, LAST_RETRY_S, self._interval_s)
        self._failures = min(self._failures + 1, 16)
        self._due_s = time.monotonic() + wait_s

    def rest(self) -> None:
        """Wait for the whole interval: everything was accepted."""
        self._failures, self._taken_s = 0, time.monotonic()
        self._due_s = self._taken_s + self._interval_s


def export_metrics(exporter: MetricExporter, data: MetricsData, settings: ExportSettings) -> bool:
    """Return whether the collector accepted the metrics. Cumulative figures lose nothing by a
    failure."""
    result = exporter.export(data, timeout_millis=settings.timeout_s * 1000)
    return result is MetricExportResult.SUCCESS


def export_spans(exporter: SpanExporter, spans: Spans, batch: int, sender: SignalExport) -> None:
    """Send all queued spans, a batch at a time; they stay queued until a collector accepts them."""
    while queued := spans.take(batch):
        accepted = exporter.export(queued) is SpanExportResult.SUCCESS
        sender.note(accepted)
        if not accepted:
            return
        spans.sent(len(queued))
    sender.rest()


class Spans:
    """Create spans of finished requests; ended spans are queued until they are sent."""

    def __init__(
        self, *, queue: int, labels_of: Callable[[dict[str, Any]], dict[str, str]] | None = None
    ) -> None:
        """`labels_of`: returns the attribute of a request's label, given its row."""
        self._chains: OrderedDict[str, list[NotableChain]] = OrderedDict()
        self._seen: set[NotableChain] = set()
        self._ended = _Ended(queue)
        self._labels_of = labels_of or (lambda _: {})
        self._tracer: Any = None
        self.exemplars: dict[Key, Exemplar] = {}
        """The latest sampled request of each series."""

    def start(self, resource: Resource, constants: Mapping[str, str]) -> None:
        """Set the engine's identity; OTEL_TRACES_SAMPLER selects the sampler."""
        self._constants = dict(constants)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(SCOPE.name, SCOPE.version, schema_url=SCOPE.schema_url)

    @property
    def dropped(self) -> int:
        """Number of spans dropped because the queue was full."""
        return self._ended.dropped

    def note(self, chains: Iterable[NotableChain]) -> None:
        """Keep chains that drifted hard, each only once."""
        latest = set()
        for chain in chains:
            latest.add(chain)
            if chain in self._seen:
                continue
            of_request = self._chains.setdefault(chain.request, [])
            if len(of_request) < CHAINS_PER_REQUEST:
                of_request.append(chain)
            while len(self._chains) > REMEMBERED_REQUESTS:
                self._chains.popitem(last=False)
        self._seen = latest

    def add(self, done: Finished) -> None:
        """Create and queue the span of a finished request."""
        row, operation = done.row, operation_of(done.row["request"])
        span = self._tracer.start_span(
            f"{operation} {self._constants.get(i.MODEL, '')}".strip(),
            context=_parent(row.get("traceparent")),
            kind=SpanKind.INTERNAL,
            start_time=nano(row["arrival_s"]),
            attributes={**self._constants, **_span_attributes(done)},
        )
        chains = self._chains.pop(row["request"], [])
        for time_s, position in done.rounds.first_rejected:
            span.add_event(REJECTED_EVENT, {"driftscope.position": position}, nano(time_s))
        for chain in chains:
            span.add_event(DRIFTED_EVENT, _chain_attributes(chain), nano(chain.time_s))
        if error := error_of(row["finish_reason"]):
            span.set_status(StatusCode.ERROR, error)
        span.end(nano(row["time_s"]))
        if span.is_recording() or span.get_span_context().trace_flags.sampled:
            self._exemplify(done, span, chains)

    def take(self, limit: int) -> list[ReadableSpan]:
        """Return the oldest queued spans, at most `limit`; they stay queued until `sent`."""
        return self._ended.oldest(limit)

    def sent(self, number: int) -> None:
        """Remove the oldest `number` spans, which a collector accepted."""
        self._ended.forget(number)

    def _exemplify(self, done: Finished, span: Any, chains: list[NotableChain]) -> None:
        context, row = span.get_span_context(), done.row
        served = {"operation": operation_of(row["request"])}
        growth = max((c.growth for c in chains), default=None)
        for instrument, value, by in (
            (i.TTFT, row["ttft_s"], served),
            (i.TPOT, row["tpot_s"], served),
            (i.REQUEST_LENGTH, done.rounds.mean_length, self._labels_of(row)),
            (i.GROWTH, growth, {}),
        ):
            if value is not None:
                self.exemplars[instrument.name, full_attributes(by)] = Exemplar(
                    value=value,
                    time_s=row["time_s"],
                    trace_id=context.trace_id,
                    span_id=context.span_id,
                )


class _Ended(SpanProcessor):
    """A bounded queue that keeps the oldest spans; spans that do not fit are counted."""

    def __init__(self, size: int) -> None:
        self._size, self._queue = size, deque[ReadableSpan]()
        self.dropped = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue an ended span."""
        if len(self._queue) >= self._size:
            self.dropped += 1
        else:
            self._queue.append(span)

    def oldest(self, limit: int) -> list[ReadableSpan]:
        return [self._queue[at] for at in range(min(limit, len(self._queue)))]

    def forget(self, number: int) -> None:
        for _ in range(number):
            self._queue.popleft()


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
    scoped = ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url=i.SCHEMA_URL)
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
        exemplars=[]
        if point.exemplar is None
        else [
            OtelExemplar(
                filtered_attributes={},
                value=point.exemplar.value,
                time_unix_nano=nano(point.exemplar.time_s),
                span_id=point.exemplar.span_id,
                trace_id=point.exemplar.trace_id,
            )
        ],
        **when,
    )


def _attributes(point: Point, constants: Mapping[str, str]) -> dict[str, str | int]:
    own = {name: int(v) if name == DEPTH else v for name, v in point.attributes}
    return {**constants, **own}


def metric_exporter(settings: ExportSettings) -> MetricExporter | None:
    """Return the metric exporter; None if metrics are not exported.

    Raises TelemetryError when the protocol's package is missing.
    """
    if settings.metrics is not None and settings.metrics.exporter == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter(out=sys.stderr)
    out: MetricExporter | None = _otlp(settings.metrics, "metric_exporter", "OTLPMetricExporter")
    return out


def span_exporter(settings: ExportSettings) -> SpanExporter | None:
    """Return the span exporter; arguments and errors are those of `metric_exporter`."""
    if settings.traces is not None and settings.traces.exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    out: SpanExporter | None = _otlp(settings.traces, "trace_exporter", "OTLPSpanExporter")
    return out


def _otlp(signal: Signal | None, module: str, name: str) -> Any:
    if signal is None:
        return None
    package = "opentelemetry.exporter.otlp.proto"
    kind = "grpc" if signal.protocol == GRPC else "http"
    # gRPC uses TLS unless `insecure` is set; plain http endpoints need it.
    plain = signal.endpoint is not None and signal.endpoint.startswith("http://")
    more = {"insecure": True} if kind == "grpc" and plain else {}
    try:
        exporter = getattr(importlib.import_module(f"{package}.{kind}.{module}"), name)
    except ImportError as error:
        extra = "driftscope-probe[otlp-grpc]" if kind == "grpc" else "driftscope-probe"
        raise TelemetryError(
            f"OTLP over {signal.protocol}: {error.name or error} is not installed; "
            f"pip install '{extra}'"
        ) from error
    return exporter(endpoint=signal.endpoint, **more)


def _parent(traceparent: str | None) -> Context | None:
    """Return the caller's trace context; None starts a new trace."""
    if not traceparent:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


def _span_attributes(done: Finished) -> dict[str, Any]:
    row, rounds = done.row, done.rounds
    attributes = {
        i.OPERATION: operation_of(row["request"]),
        i.ERROR: error_of(row["finish_reason"]) or None,
        "gen_ai.conversation.id": row["session"],
        "driftscope.request.id": row["request"],
        i.LABEL: row["label"],
        i.ADAPTER: row["adapter"],
        "gen_ai.usage.input_tokens": row["prompt_tokens"],
        "gen_ai.usage.output_tokens": row["output_tokens"],
        "gen_ai.response.finish_reasons": (row["finish_reason"],),
        "gen_ai.request.temperature": row["temperature"],
        "gen_ai.request.max_tokens": row["max_tokens"],
        # As vLLM and SGLang name them on their own spans.
        "gen_ai.latency.time_to_first_token": row["ttft_s"],
        "gen_ai.latency.e2e": row["time_s"] - row["arrival_s"],
        "driftscope.time_per_output_token": row["tpot_s"],
        i.ROUNDS.name: rounds.rounds,
        i.REJECTED_ROUNDS.name: rounds.rejected,
        i.UNDRAFTED_STEPS.name: rounds.undrafted,
        i.VERIFIED.name: rounds.verified,
        i.ACCEPTED.name: rounds.accepted,
        i.LENGTH.name: rounds.mean_length,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _chain_attributes(chain: NotableChain) -> dict[str, Any]:
    attributes = {
        "driftscope.position": chain.position,
        "driftscope.k": chain.k,
        i.GROWTH.name: chain.growth,
    }
    return {name: value for name, value in attributes.items() if value is not None}
