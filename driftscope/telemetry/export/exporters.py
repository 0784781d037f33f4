"""Create OpenTelemetry's exporters from the settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from driftscope.errors import TelemetryError
from driftscope.telemetry.export.settings import GRPC, Settings, Signal

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter


def metric_exporter(settings: Settings, timeout_s: float | None = None) -> MetricExporter | None:
    """Return the metric exporter; None if metrics are not exported.

    `timeout_s`: time for one batch including retries, in seconds; None: OpenTelemetry's variables
    decide.

    Raises TelemetryError when the protocol's package is missing.
    """
    signal = settings.metrics
    if signal is None:
        return None
    if signal.exporter == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter(out=sys.stderr)
    made: MetricExporter = _otlp(signal, "metric_exporter", "OTLPMetricExporter", timeout_s)
    return made


def span_exporter(settings: Settings, timeout_s: float | None = None) -> SpanExporter | None:
    """Return the span exporter; arguments and errors are those of `metric_exporter`."""
    signal = settings.traces
    if signal is None:
        return None
    if signal.exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    made: SpanExporter = _otlp(signal, "trace_exporter", "OTLPSpanExporter", timeout_s)
    return made


def _otlp(signal: Signal, module: str, name: str, timeout_s: float | None) -> Any:
    import importlib

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
    return exporter(endpoint=signal.endpoint, timeout=timeout_s, **more)
