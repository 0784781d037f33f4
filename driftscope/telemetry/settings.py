"""Export settings from DRIFTSCOPE_OTLP, DRIFTSCOPE_PROMETHEUS and OpenTelemetry's own variables.

OpenTelemetry's exporters read headers, certificates, compression and timeouts themselves. The SDK
handles resource attributes and the sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from driftscope.boundary.http_peer import BadUrlError, ServerUrl, public
from driftscope.errors import TelemetryError

OTLP = "DRIFTSCOPE_OTLP"
"""Send metrics and spans to this OpenTelemetry collector, such as `http://localhost:4318`; `OTEL_*`
variables work too."""
PROMETHEUS = "DRIFTSCOPE_PROMETHEUS"
"""Answer Prometheus at this port of 127.0.0.1, or at `host:port` (`0.0.0.0:9464` for scrapes from
other machines); replica n answers at the n-th port after it."""
METRIC_LABELS = "DRIFTSCOPE_METRIC_LABELS"
"""Workload labels that become an attribute of per-request metrics, at most 8, separated by commas;
others count as `other`."""
METRICS, TRACES = "metrics", "traces"
HTTP, GRPC = "http/protobuf", "grpc"
DEFAULT_INTERVAL_MS = 60_000
DEFAULT_TIMEOUT_MS = 30_000
DEFAULT_QUEUE = 2048
DEFAULT_BATCH = 512
DEFAULT_DELAY_MS = 5_000
"""Default delay, in ms. All five defaults are those of OpenTelemetry's specification."""
DEFAULT_PROMETHEUS_PORT = 9464
LOOPBACK = "127.0.0.1"
"""Address of the scrape endpoint unless a host is given: the endpoint has no password."""
MAX_LABELS = 8
"""Most labels that may become an attribute: each adds about twenty series."""
_EXPORTERS = {
    METRICS: ("otlp", "console", "prometheus", "none"),
    TRACES: ("otlp", "console", "none"),
}
_TEMPORALITIES = ("cumulative", "delta", "lowmemory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Export settings of one signal, METRICS or TRACES."""

    exporter: str
    """Name of the exporter, "otlp" or "console"."""
    protocol: str = HTTP
    endpoint: str | None = None
    """Endpoint URL; None: OpenTelemetry's variables decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """Destinations of figures and spans, and how they are sent."""

    metrics: Signal | None = None
    traces: Signal | None = None
    prometheus: tuple[str, int] | None = None
    """Host and port of the scrape endpoint."""
    labels: tuple[str, ...] = ()
    """Workload labels that become an attribute value."""
    temporality: str = "cumulative"
    interval_s: float = DEFAULT_INTERVAL_MS / 1000
    timeout_s: float = DEFAULT_TIMEOUT_MS / 1000
    span_delay_s: float = DEFAULT_DELAY_MS / 1000
    span_queue: int = DEFAULT_QUEUE
    span_batch: int = DEFAULT_BATCH
    exemplars: bool = True


def settings_from(environ: Mapping[str, str]) -> ExportSettings | None:
    """Return the settings in force, or None when nothing is exported. Raises TelemetryError."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    metrics, traces = _signal(environ, METRICS), _signal(environ, TRACES)
    prometheus = _prometheus(environ)
    if not (metrics or traces or prometheus):
        return None
    return ExportSettings(
        metrics=metrics,
        traces=traces,
        prometheus=prometheus,
        labels=_labels(environ),
        temporality=_choice(
            environ, "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", _TEMPORALITIES
        ),
        interval_s=_number(environ, "OTEL_METRIC_EXPORT_INTERVAL", DEFAULT_INTERVAL_MS) / 1000,
        timeout_s=_number(environ, "OTEL_METRIC_EXPORT_TIMEOUT", DEFAULT_TIMEOUT_MS) / 1000,
        span_delay_s=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", DEFAULT_DELAY_MS) / 1000,
        span_queue=_number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_QUEUE),
        span_batch=_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", DEFAULT_BATCH),
        exemplars=environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "") != "always_off",
    )


def endpoint_of(value: str, protocol: str) -> str:
    """Return a base URL such as http://collector:4318. Raises TelemetryError, whose message
    contains no password."""
    try:
        url = ServerUrl.parsed(value)
    except BadUrlError as error:
        raise TelemetryError(
            f"{public(value)}: give the collector's URL, such as http://localhost:4318"
        ) from error
    if url.authorization and protocol == GRPC:
        raise TelemetryError(
            f"{url.plain}: gRPC sends no user and password; give OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value.rstrip("/")


def _signal(environ: Mapping[str, str], name: str) -> Signal | None:
    upper = name.upper()
    asked = [e.strip() for e in environ.get(f"OTEL_{upper}_EXPORTER", "").split(",") if e.strip()]
    if unknown := [e for e in asked if e not in _EXPORTERS[name]]:
        raise TelemetryError(
            f"OTEL_{upper}_EXPORTER={unknown[0]}: give one of {', '.join(_EXPORTERS[name])}"
        )
    base = environ.get(OTLP, "").strip()
    standard = (f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if "console" in asked:
        return Signal(exporter="console")
    wanted = "otlp" in asked or (not asked and (base or any(environ.get(v) for v in standard)))
    if not wanted:
        return None
    protocol = environ.get(f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", HTTP
    )
    if protocol not in (HTTP, GRPC):
        raise TelemetryError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: give {HTTP} or {GRPC}")
    endpoint = None
    if base:
        endpoint = endpoint_of(base, protocol) + (f"/v1/{name}" if protocol == HTTP else "")
    return Signal(exporter="otlp", protocol=protocol, endpoint=endpoint)


def _prometheus(environ: Mapping[str, str]) -> tuple[str, int] | None:
    asked = "prometheus" in environ.get("OTEL_METRICS_EXPORTER", "").split(",")
    value = environ.get(PROMETHEUS, "").strip()
    if not (value or asked):
        return None
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # brackets of an IPv6 address
    host = host or environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip() or LOOPBACK
    port = port or environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", str(DEFAULT_PROMETHEUS_PORT))
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 1 << 16):
        raise TelemetryError(f"--prometheus or {PROMETHEUS}, {value}: give a port, or HOST:PORT")
    return host, int(port)


def _labels(environ: Mapping[str, str]) -> tuple[str, ...]:
    given = [label.strip() for label in environ.get(METRIC_LABELS, "").split(",")]
    labels = tuple(dict.fromkeys(filter(None, given)))
    if len(labels) > MAX_LABELS:
        raise TelemetryError(f"{METRIC_LABELS}: {len(labels)} labels; give at most {MAX_LABELS}")
    return labels


_MOST_DIGITS = 9
"""Digits of a number of milliseconds, which is then below twelve days."""


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "").strip() or str(default)
    if not value.isdecimal() or len(value) > _MOST_DIGITS or int(value) < 1:
        raise TelemetryError(f"{name}={value}: give a whole number, 1 or more")
    return int(value)


def _choice(environ: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = environ.get(name, "").strip().lower() or allowed[0]
    if value not in allowed:
        raise TelemetryError(f"{name}={value}: give one of {', '.join(allowed)}")
    return value
