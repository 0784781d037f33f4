"""Error messages of OpenTelemetry's exporters are kept without keys and control characters."""

from __future__ import annotations

import logging

import pytest

from driftscope.telemetry.export import LOGGER, capture_exporter_errors, secrets_in


def test_headers_and_endpoints_hold_secrets() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=k-1,authorization=Bearer%20t-2",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=b",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:p-3@h:4318",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "no url",
        "HEADERS": "x=y",
    }
    assert secrets_in(environ) == ["k-1", "t-2", "b", "p-3", "bWU6cC0z"]


def test_the_first_cause_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=sk-0123456789")
    with capture_exporter_errors() as said:
        logging.getLogger(LOGGER).warning("refused: key sk-0123456789 \x1b[2J\nline")
        logging.getLogger(LOGGER).warning("again")
    assert said.first == r"refused: key *** \x1b[2J line"
