"""Counts of recorded rows as metrics, and where they are sent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


def test_no_metric_is_the_namespace_of_another() -> None:
    for name in INSTRUMENTS:
        assert not any(other.startswith(f"{name}.") for other in INSTRUMENTS), name


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


def _requests(*names: str) -> list[RequestRow]:
    finished = [row for row in rows(Spec(requests=len(names))) if isinstance(row, RequestRow)]
    return [replace(row, request=name) for row, name in zip(finished, names, strict=True)]


def test_chat_and_completions_are_counted_apart() -> None:
    tally = Tally()
    made = _requests("chatcmpl-1", "cmpl-2-0", "chatcmpl-3", "a1b2")
    BatchCounter(tally=tally).take("request", to_batch("request", made))
    counts = {
        dict(point.attributes)[i.OPERATION]: point.count
        for point in tally.snapshot().values()
        if point.name == i.TTFT.name
    }
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
    failed = {
        dict(point.attributes).get(i.ERROR, ""): point.count
        for point in points
        if point.name == i.REQUEST_TIME.name
    }
    assert failed == {"": 3, "abort": 1, "error": 1}
    whole = sum(point.value for point in points if point.name == i.REQUEST_TIME.name)
    assert whole == pytest.approx(sum(row.time_s - row.arrival_s for row in made))
    for instrument in (i.TTFT, i.TPOT):
        assert sum(point.count for point in points if point.name == instrument.name) == 3


ROOT = Path(__file__).parents[3]
WRITTEN_IN = ("probes/driftscope_probes", "driftscope/trace")


def _by(tally: Tally, instrument: i.Instrument, attribute: str) -> dict[str, float]:
    return {
        dict(point.attributes)[attribute]: point.value
        for point in tally.snapshot().values()
        if point.name == instrument.name
    }


def _status(**values: object) -> Status:
    return Status(source="worker0-11", closed=False, flushed_s=1.0, **values)  # type: ignore[arg-type]


def test_every_cause_begins_at_0_and_a_hook_with_its_first_error() -> None:
    tally = Tally()
    record_status(tally, _status())
    assert _by(tally, i.DROPPED, i.CAUSE) == dict.fromkeys(DROP_CAUSES, 0)
    assert _by(tally, i.ERRORS, i.HOOK) == {}


def test_counts_and_unknown_names_are_kept() -> None:
    tally = Tally()
    record_status(tally, _status(dropped={"disk_error": 3, "later": 1}, errors={"masses": 2}))
    dropped = _by(tally, i.DROPPED, i.CAUSE)
    assert (dropped["disk_error"], dropped["later"], dropped["queue_full"]) == (3, 1, 0)
    assert _by(tally, i.ERRORS, i.HOOK) == {"masses": 2}


def test_the_list_of_causes_is_that_of_the_code() -> None:
    """A cause that is added to the probe or the writer is added to the list."""
    causes = set(_first_strings({"count_dropped", "_count_lost"}))
    # One is a constant of the recorder; the queue and the files on disk count their own.
    counted = {"shadow_differs", "queue_full", "disk_limit", "disk_error"}
    assert causes | counted == set(DROP_CAUSES)


def _first_strings(names: set[str]) -> Iterator[str]:
    """Yield the literal first arguments of calls to these methods, also by functools.partial."""
    for folder in WRITTEN_IN:
        for path in (ROOT / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call):
                    yield from _string_of(call, names)


def _string_of(call: ast.Call, names: set[str]) -> Iterator[str]:
    for called, given in zip((call.func, *call.args), call.args, strict=False):
        named = isinstance(called, ast.Attribute) and called.attr in names
        if named and isinstance(given, ast.Constant) and isinstance(given.value, str):
            yield given.value


def test_a_status_that_leaves_things_out() -> None:
    tally = Tally()
    empty: Any = {"dropped": None, "errors": None, "probe_s": None, "writer_s": None}
    record_status(tally, Status(source="worker0-1", closed=False, flushed_s=1.0, **empty))
    record_status(tally, Status(source="worker1-2", closed=False, flushed_s=1.0, rate=float("nan")))
    assert {p.value for p in tally.snapshot().values() if p.name != UP.name} == {0.0}


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
    ],
)
def test_what_cannot_be_used_is_said(environ: dict[str, str], words: str) -> None:
    with pytest.raises(TelemetryError, match=words):
        settings_from(environ)
