"""Where figures go, by environment variables, and what is kept of an exporter's errors."""

from __future__ import annotations

import logging

import pytest

from driftscope.errors import TelemetryError
from driftscope.telemetry.export import LOGGER, capture_exporter_errors, secrets_in
from driftscope.telemetry.settings import settings_from

URL = "http://collector:4318"


def test_nothing_is_sent_unless_asked_for() -> None:
    assert settings_from({}) is None
    assert settings_from({"OTEL_SERVICE_NAME": "chat"}) is None


def test_the_short_form_sends_both_signals_over_http() -> None:
    found = settings_from({"DRIFTSCOPE_OTLP": URL + "/"})
    assert found is not None and found.metrics is not None and found.traces is not None
    assert found.metrics.endpoint == f"{URL}/v1/metrics"
    assert found.traces.endpoint == f"{URL}/v1/traces"
    assert found.interval_s == 60.0


def test_standard_endpoints_are_left_to_the_exporters() -> None:
    found = settings_from({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL})
    assert found is not None and found.traces is None
    assert found.metrics is not None and found.metrics.endpoint is None


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_SDK_DISABLED": "true", "DRIFTSCOPE_OTLP": URL},
        {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none", "DRIFTSCOPE_OTLP": URL},
    ],
)
def test_it_can_be_switched_off(environ: dict[str, str]) -> None:
    assert settings_from(environ) is None


def test_prometheus() -> None:
    """Nobody else's machine is answered unless a host is given."""
    found = settings_from({"OTEL_METRICS_EXPORTER": "prometheus"})
    assert found is not None and found.prometheus == ("127.0.0.1", 9464)
    assert found.metrics is None
    for value, where in (
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
    ):
        found = settings_from({"DRIFTSCOPE_PROMETHEUS": value})
        assert found is not None and found.prometheus == where
    found = settings_from(
        {"DRIFTSCOPE_PROMETHEUS": "9100", "OTEL_EXPORTER_PROMETHEUS_HOST": "10.0.0.1"}
    )
    assert found is not None and found.prometheus == ("10.0.0.1", 9100)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"DRIFTSCOPE_OTLP": "collector:4318"}, "give the collector's URL"),
        ({"DRIFTSCOPE_PROMETHEUS": "no"}, "give a port"),
        ({"DRIFTSCOPE_PROMETHEUS": "²"}, "give a port"),
        ({"DRIFTSCOPE_PROMETHEUS": "9" * 5000}, "give a port"),
        ({"DRIFTSCOPE_OTLP": "grpc://me:s3cret@collector:4318"}, "^grpc://collector:4318: give"),
        (
            {"DRIFTSCOPE_OTLP": "http://me:s3cret@h", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "^http://h: gRPC sends no user and password",
        ),
        ({"DRIFTSCOPE_OTLP": "http://me:s3cret@h:port"}, "^http://h:port: give"),
        ({"DRIFTSCOPE_OTLP": URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/protobuf"),
        ({"OTEL_METRICS_EXPORTER": "statsd"}, "give one of otlp"),
        ({"DRIFTSCOPE_OTLP": URL, "OTEL_METRIC_EXPORT_INTERVAL": "soon"}, "whole number"),
        ({"DRIFTSCOPE_OTLP": URL, "DRIFTSCOPE_METRIC_LABELS": "a,b,c,d,e,f,g,h,i"}, "at most 8"),
        ({"DRIFTSCOPE_OTLP": URL, "DRIFTSCOPE_METRIC_REGIONS": "some"}, "give 1 or 0"),
    ],
)
def test_what_cannot_be_used_is_said(environ: dict[str, str], words: str) -> None:
    with pytest.raises(TelemetryError, match=words):
        settings_from(environ)


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
