"""Counts of recorded rows as metrics, and where they are sent."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.schemas import Schemas
from support.runs import Spec, rows

from driftscope.errors import TelemetryError
from driftscope.telemetry import instruments as i
from driftscope.telemetry.count import BatchCounter, record_status
from driftscope.telemetry.instruments import COUNTER, GAUGE, HISTOGRAM, INSTRUMENTS, UP, Tally
from driftscope.telemetry.settings import settings_from
from driftscope.trace.records import RequestRow
from driftscope.trace.schema import to_batch
from driftscope.trace.status import DROP_CAUSES, Status


def test_every_instrument_says_all_it_must() -> None:
    for name, one in INSTRUMENTS.items():
        assert one.name == name and re.fullmatch(r"(driftscope|gen_ai)(\.[a-z0-9_]+)+", name)
        assert one.kind in (COUNTER, GAUGE, HISTOGRAM)
        assert re.fullmatch(r"1|s|\{[a-z]+\}", one.unit), name
        assert one.description.endswith("."), name
        assert all(low < high for low, high in pairwise(one.bounds)), name
        assert not one.bounds or one.bounds[0] >= 0, "Prometheus then has no sum"
        assert not any(other.startswith(f"{name}.") for other in INSTRUMENTS), "a namespace"


def test_names_of_genai_stand_in_the_conventions() -> None:
    """As the installed package of OpenTelemetry's conventions has them."""
    units = {"gen_ai.server.request.duration", "gen_ai.server.time_to_first_token"}
    theirs = {name for name in vars(gen_ai_metrics).values() if isinstance(name, str)}
    mine = {name for name in INSTRUMENTS if name.startswith("gen_ai.")}
    assert mine == {*units, "gen_ai.server.time_per_output_token"} <= theirs
    assert {INSTRUMENTS[name].unit for name in mine} == {"s"}
    known = list(vars(gen_ai_attributes).values())
    assert all(name in known for name in (i.MODEL, i.PROVIDER, i.OPERATION))
    assert i.ERROR == ERROR_TYPE
    assert i.SCHEMA_URL in {schema.value for schema in Schemas}
    bounds = i.REQUEST_TIME.bounds  # 0.01 s, doubled 13 times
    assert bounds == pytest.approx([0.01 * 2**n for n in range(14)])


def _by(tally: Tally, instrument: i.Instrument, attribute: str, of: str = "value") -> object:
    """Return a quantity of an instrument's points by one of their attributes."""
    return {
        dict(point.attributes).get(attribute, ""): getattr(point, of)
        for point in tally.snapshot().values()
        if point.name == instrument.name
    }


def _requests(*names: str) -> list[RequestRow]:
    finished = [row for row in rows(Spec(requests=len(names))) if isinstance(row, RequestRow)]
    return [replace(row, request=name) for row, name in zip(finished, names, strict=True)]


def test_chat_and_completions_are_counted_apart() -> None:
    tally = Tally()
    made = _requests("chatcmpl-1", "cmpl-2-0", "chatcmpl-3", "a1b2")
    BatchCounter(tally=tally).take("request", to_batch("request", made))
    counts = _by(tally, i.TTFT, i.OPERATION, "count")
    assert counts == {"chat": 2, "text_completion": 1, "generate": 1}


def test_a_request_that_failed_has_an_error_type_and_no_time_to_first_token() -> None:
    tally = Tally()
    reasons = ("length", "abort", "stop", "error", "stop_string_or_abort")
    made = [
        replace(row, finish_reason=reason)
        for row, reason in zip(_requests(*reasons), reasons, strict=True)
    ]
    BatchCounter(tally=tally).take("request", to_batch("request", made))
    points = tally.snapshot().values()
    failed = _by(tally, i.REQUEST_TIME, i.ERROR, "count")
    assert failed == {"": 3, "abort": 1, "error": 1}
    whole = sum(point.value for point in points if point.name == i.REQUEST_TIME.name)
    assert whole == pytest.approx(sum(row.time_s - row.arrival_s for row in made))
    for instrument in (i.TTFT, i.TPOT):
        assert sum(point.count for point in points if point.name == instrument.name) == 3


ROOT = Path(__file__).parents[3]
WRITTEN_IN = ("probes/driftscope_probes", "driftscope/trace")


def test_every_cause_begins_at_0_and_a_hook_with_its_first_error() -> None:
    """Unknown names are kept."""
    status = Status(source="worker0-11", closed=False, flushed_s=1.0)
    for lost, errors in (({}, {}), ({"disk_error": 3, "later": 1}, {"masses": 2})):
        tally = Tally()
        record_status(tally, replace(status, dropped=lost, errors=errors))
        assert _by(tally, i.DROPPED, i.CAUSE) == {**dict.fromkeys(DROP_CAUSES, 0), **lost}
        assert _by(tally, i.ERRORS, i.HOOK) == errors


def test_the_list_of_causes_is_that_of_the_code() -> None:
    """A cause that is added to the probe or the writer is added to the list."""
    text = "".join(path.read_text() for at in WRITTEN_IN for path in (ROOT / at).rglob("*.py"))
    causes = set(re.findall(r'\b(?:count_dropped|_count_lost)[(,]\s*"(\w+)"', text))
    # One is a constant of the recorder; the queue and the files on disk count their own.
    counted = {"shadow_differs", "queue_full", "disk_limit", "disk_error"}
    assert causes | counted == set(DROP_CAUSES)


def test_a_status_that_leaves_things_out() -> None:
    tally = Tally()
    empty: Any = {"dropped": None, "errors": None, "probe_s": None, "writer_s": None}
    record_status(tally, Status(source="worker0-1", closed=False, flushed_s=1.0, **empty))
    record_status(tally, Status(source="worker1-2", closed=False, flushed_s=1.0, rate=float("nan")))
    assert {p.value for p in tally.snapshot().values() if p.name != UP.name} == {0.0}


URL = "http://collector:4318"
HERE = "127.0.0.1"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "chat"},
        {"OTEL_SDK_DISABLED": "true", "DRIFTSCOPE_OTLP": URL},
        {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none", "DRIFTSCOPE_OTLP": URL},
    ],
)
def test_nothing_is_sent_unless_asked_for(environ: dict[str, str]) -> None:
    assert settings_from(environ) is None


@pytest.mark.parametrize(
    ("environ", "metrics", "traces"),
    [
        ({"DRIFTSCOPE_OTLP": f"{URL}/"}, f"{URL}/v1/metrics", f"{URL}/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, None, "none"),  # left to the exporter
    ],
)
def test_where_signals_are_sent(environ: dict[str, str], metrics: str | None, traces: str) -> None:
    found = settings_from(environ)
    assert found is not None and found.metrics is not None and found.interval_s == 60.0
    assert found.metrics.endpoint == metrics
    assert (found.traces.endpoint if found.traces else "none") == traces


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, (HERE, 9464)),
        ({"DRIFTSCOPE_PROMETHEUS": "9100"}, (HERE, 9100)),
        ({"DRIFTSCOPE_PROMETHEUS": "0.0.0.0:9100"}, ("0.0.0.0", 9100)),
        ({"DRIFTSCOPE_PROMETHEUS": "[::1]:9100"}, ("::1", 9100)),
        ({"DRIFTSCOPE_PROMETHEUS": ":9100"}, (HERE, 9100)),
        (
            {"DRIFTSCOPE_PROMETHEUS": "9100", "OTEL_EXPORTER_PROMETHEUS_HOST": "10.0.0.1"},
            ("10.0.0.1", 9100),
        ),
    ],
)
def test_nobody_elses_machine_is_answered_unless_a_host_is_given(
    environ: dict[str, str], where: tuple[str, int]
) -> None:
    found = settings_from(environ)
    assert found is not None and (found.prometheus, found.metrics) == (where, None)


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
    ],
)
def test_what_cannot_be_used_is_said(environ: dict[str, str], words: str) -> None:
    with pytest.raises(TelemetryError, match=words):
        settings_from(environ)
