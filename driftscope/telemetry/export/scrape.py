"""Export figures to Prometheus, by a scrape endpoint or a file."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from driftscope.errors import TelemetryError
from driftscope.telemetry.collect.instruments import COUNTER, GAUGE, INSTRUMENTS, Instrument
from driftscope.telemetry.collect.tally import Key, Point, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.resources import Resource

STOP_S = 5.0
"""Longest time to wait for the endpoint to stop answering, in seconds."""
_UNITS = {"s": "_seconds", "By": "_bytes"}
_RUN_LABEL = "service.instance.id"


class Identified(Protocol):
    """Identity of an engine."""

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes that every series of the engine has."""

    def resource(self) -> Resource:
        """Return the OpenTelemetry resource."""


class Source(Protocol):
    """Source of the figures for a scrape."""

    def snapshot(self) -> dict[Key, Point]:
        """Return every figure with its current value."""

    def identity(self) -> Identified | None:
        """Return the identity of the engine; None until it is known."""


def metric_name(instrument: Instrument) -> str:
    """Return Prometheus's name of a metric, the same when figures arrive by OTLP. It has no suffix
    of a counter or histogram."""
    name = instrument.name.replace(".", "_") + _UNITS.get(instrument.unit, "")
    return f"{name}_ratio" if instrument.kind == GAUGE and instrument.unit == "1" else name


def label_name(attribute: str) -> str:
    """Return Prometheus's name of an attribute."""
    return attribute.replace(".", "_")


def serve(source: Source, host: str, port: int) -> Callable[[], None]:
    """Answer scrapes at `host`:`port` from a separate thread; return a function that stops it.

    Raises TelemetryError when the port is taken or prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise TelemetryError(
            "a Prometheus endpoint needs prometheus-client; "
            "pip install 'driftscope-probe[prometheus]'"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(source))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise TelemetryError(
            f"{host}:{port}: cannot serve Prometheus metrics there ({error.strerror}); give "
            "DRIFTSCOPE_PROMETHEUS another port (replica n takes the n-th after it)"
        ) from error

    def stop() -> None:
        # This runs on the trace writer's thread, which a hanging scrape must not block.
        last = threading.Thread(target=server.shutdown, daemon=True)
        last.start()
        last.join(STOP_S)
        server.server_close()
        thread.join(STOP_S)

    return stop


Moments = Sequence[tuple[float | None, Snapshot]]
"""Snapshots of one engine, each with its timestamp; None: the time of the scrape."""


def families_text(engines: Sequence[tuple[Moments, Mapping[str, str]]]) -> str:
    """Return engines, each with the attributes of all its series, as OpenMetrics text.

    `promtool tsdb create-blocks-from openmetrics` turns the text into blocks. Raises TelemetryError
    without prometheus-client.
    """
    try:
        from prometheus_client.openmetrics.exposition import generate_latest
    except ImportError as error:
        raise TelemetryError(
            "OpenMetrics text needs prometheus-client; pip install 'driftscope-probe[prometheus]'"
        ) from error

    class Families:
        def collect(self) -> Iterator[Any]:
            yield from families(engines)

    text: bytes = generate_latest(Families())  # type: ignore[no-untyped-call]
    return text.decode()


def families(engines: Sequence[tuple[Moments, Mapping[str, str]]]) -> Iterator[Any]:
    """Yield prometheus_client's metric families; the moments of one series are adjacent."""
    series: dict[str, dict[tuple[int, Key], list[tuple[float | None, Point]]]] = {}
    for at, (moments, _) in enumerate(engines):
        for time_s, snapshot in moments:
            for key, point in snapshot.items():
                series.setdefault(point.name, {}).setdefault((at, key), []).append((time_s, point))
    for name, by_key in series.items():
        instrument = INSTRUMENTS[name]
        attributes = [*engines[0][1], *instrument.attributes]
        family = _family(instrument, list(map(label_name, attributes)))
        for (at, _), points in by_key.items():
            for time_s, point in points:
                have = {**engines[at][1], **dict(point.attributes)}
                _add(family, instrument, [have.get(a, "") for a in attributes], point, time_s)
        yield family


def _family(instrument: Instrument, labels: Sequence[str]) -> Any:
    from prometheus_client import core

    kinds = {COUNTER: core.CounterMetricFamily, GAUGE: core.GaugeMetricFamily}
    made = kinds.get(instrument.kind, core.HistogramMetricFamily)
    return made(metric_name(instrument), instrument.description, labels=labels)


def _add(
    family: Any, instrument: Instrument, labels: Sequence[str], point: Point, time_s: float | None
) -> None:
    if instrument.kind in (COUNTER, GAUGE):
        family.add_metric(labels, point.value, timestamp=time_s)
        return
    family.add_metric(labels, list(_buckets(instrument, point)), point.value, timestamp=time_s)


def _buckets(instrument: Instrument, point: Point) -> Iterator[tuple[Any, ...]]:
    """Yield cumulative buckets, as Prometheus expects. The exemplar goes into the bucket of its
    value."""
    from prometheus_client.core import Exemplar

    total, exemplar = 0, point.exemplar
    for bound, count in zip((*instrument.bounds, float("inf")), point.buckets, strict=True):
        total += count
        if exemplar is not None and exemplar.value <= bound:
            ids = {
                "trace_id": f"{exemplar.trace_id:032x}",
                "span_id": f"{exemplar.span_id:016x}",
            }
            yield _bound(bound), total, Exemplar(ids, exemplar.value, exemplar.time_s)
            exemplar = None
        else:
            yield _bound(bound), total, None


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)


class _Collector:
    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Any]:
        """Yield the current figures; nothing until the engine is known."""
        if (identity := self._source.identity()) is None:
            return
        yield from families([([(None, self._source.snapshot())], identity.attributes)])
        yield from _target_info(identity)


def _target_info(identity: Identified) -> Iterator[Any]:
    """Yield the engine's identity, following OpenTelemetry's translation to Prometheus."""
    from prometheus_client.core import InfoMetricFamily

    resource = {
        label_name(name): str(value)
        for name, value in identity.resource().attributes.items()
        if name not in ("service.name", _RUN_LABEL)
    }
    family = InfoMetricFamily("target", "Target metadata")
    family.add_metric([], resource)
    yield family
