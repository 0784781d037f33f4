"""Telemetry of recording processes, with real writers and a real receiver that misbehaves."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.collector import ERROR, HANG, OK, Collector, http, over_grpc
from support.runs import Spec, by_source, manifest, rows
from support.waiting import free_port, until

from driftscope.errors import TelemetryError
from driftscope.telemetry.engine import EngineTelemetry, WorkerTelemetry, identity_of, model_label
from driftscope.telemetry.instruments import INSTRUMENTS, SCHEMA_URL
from driftscope.telemetry.settings import OTLP, PROMETHEUS, ExportSettings, settings_from
from driftscope.trace.manifest import Model
from driftscope.trace.records import RequestRow, Row, VerifyRow
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import create_run

DIGEST = "1f2e3d4c5b6a7988"


def _model(name: str, **digests: str) -> Model:
    return Model(name=name, architecture="", dtype="", **{"config_digest": DIGEST, **digests})


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("org/drafter-8b", "org/drafter-8b"),
        ("chat", "chat"),
        ("ngram", "ngram"),
        ("/models/a/drafter", "drafter@1f2e3d4c"),
        ("/mnt/other/drafter/", "drafter@1f2e3d4c"),
        ("./drafter", "drafter@1f2e3d4c"),
        ("~/models/drafter", "drafter@1f2e3d4c"),
        ("/root/.cache/huggingface/hub/models--org--drafter-8b/snapshots/0a1b", "org/drafter-8b"),
    ],
)
def test_a_path_is_named_by_its_last_part_and_a_digest(name: str, label: str) -> None:
    """The digest is that of the weights where it is known."""
    assert model_label(_model(name)) == label
    assert model_label(_model("/m/d", weights_digest="99aabbccddeeff00")) == "d@99aabbcc"
    assert model_label(_model("/m/d", config_digest="")) == "d"


def test_replicas_with_other_mounts_have_the_same_labels() -> None:
    made = manifest(Spec())
    labels = []
    for mount in ("/mnt/a", "/var/models"):
        target, drafter = _model(f"{mount}/chat"), _model(f"{mount}/drafter")
        served = replace(made, target=target, drafter=drafter)
        labels.append(identity_of(served).attributes)
    assert labels[0] == labels[1]
    assert not any("/" in value for value in labels[0].values())


pytestmark = pytest.mark.process

SPEC = Spec(requests=6)
ROUNDS = SPEC.requests * SPEC.rounds
FAST = {"OTEL_METRIC_EXPORT_INTERVAL": "200", "OTEL_BSP_SCHEDULE_DELAY": "200"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals that a test can wait for; a hanging request gives up after a second."""
    monkeypatch.setattr("driftscope.telemetry.engine.POLL_S", 0.05)
    monkeypatch.setattr("driftscope.telemetry.engine.PUBLISH_S", 0.1)
    monkeypatch.setattr("driftscope.telemetry.engine.SETTLE_S", 0.3)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


def settings(url: str, **more: str) -> ExportSettings:
    found = settings_from({OTLP: url, **FAST, **more})
    assert found is not None
    return found


class Engine:
    """An engine core and a worker that record into one run, as two processes would."""

    def __init__(
        self, run: Path, asked: ExportSettings, spec: Spec = SPEC, name: str = "vllm", **more: int
    ) -> None:
        create_run(run, replace(manifest(spec), engine=name))
        self.run, options = run, WriterOptions(flush_s=0.02, **more)
        self.core = core = TraceWriter(run, source="engine0-11", options=options)
        self.speaker = EngineTelemetry(run, core.source, asked, core.status, model="served")
        self.core.subscribe(self.speaker.on_batches, self.speaker.flush)
        sources = [f"worker{rank}-{12 + rank}" for rank in range(spec.tensor_parallel)]
        self.workers = [TraceWriter(run, source=source, options=options) for source in sources]
        for worker in self.workers:
            publisher = WorkerTelemetry(run, worker.source, worker.status)
            worker.subscribe(publisher.on_batches, publisher.publish)

    def serve(self, spec: Spec = SPEC) -> None:
        for row in rows(spec):
            self.put(row)

    def put(self, row: Row) -> None:
        core = isinstance(row, VerifyRow | RequestRow)
        assert (self.core if core else self.workers[0]).put(row)

    def close(self) -> None:
        """In the order in which vLLM does."""
        for part in (self.core, *self.workers, self.speaker):
            part.close()

    def record(self, spec: Spec = SPEC) -> None:
        self.serve(spec)
        self.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with http() as found:
        yield found


def test_two_processes_speak_as_one_engine(tmp_path: Path, collector: Collector) -> None:
    Engine(tmp_path / "run", settings(collector.url)).record()
    assert collector.value("driftscope.rounds.completed") == ROUNDS  # the engine core's
    assert collector.value("driftscope.hidden.growth") == ROUNDS + SPEC.requests  # the worker's
    resource = collector.resource()
    assert resource["service.name"] == "driftscope"
    assert resource["service.instance.id"].endswith("/run-1/0")
    names = {"gen_ai.request.model": "served", "gen_ai.provider.name": "vllm"}
    for _, labels in collector.points():
        assert {*names.items(), ("driftscope.drafter", SPEC.drafter)} <= {*labels}
    for metric in collector.scoped():
        instrument = INSTRUMENTS[metric.name]
        assert (metric.unit, metric.description) == (instrument.unit, instrument.description)


@pytest.mark.parametrize("behaviour", [HANG, ERROR])
def test_counts_are_complete_when_a_collector_recovers(
    tmp_path: Path, collector: Collector, behaviour: str
) -> None:
    collector.behaviour = behaviour
    engine = Engine(tmp_path / "run", settings(collector.url))
    engine.serve()
    until(lambda: collector.asked >= 2)
    collector.behaviour = OK
    collector.released.set()
    done = "driftscope.rounds.completed"
    until(lambda: bool(collector.metrics) and collector.value(done) == ROUNDS)
    until(lambda: len(collector.all_spans()) >= SPEC.requests)
    engine.close()
    assert collector.value("driftscope.export.attempts", outcome="failure") >= 1
    assert len(collector.all_spans()) == SPEC.requests


@pytest.mark.parametrize("behaviour", [HANG, "absent"])
def test_a_collector_that_is_no_help_delays_nothing(
    tmp_path: Path, collector: Collector, behaviour: str
) -> None:
    """Rows handed over while the exporter hangs are written to disk and counted, without
    waiting."""
    collector.behaviour = behaviour
    url = collector.url if behaviour == HANG else "http://127.0.0.1:9"
    engine = Engine(tmp_path / "run", settings(url))
    engine.serve()
    until(lambda: engine.core.status().rows.get("verify", 0) == ROUNDS)
    until(lambda: engine.speaker.snapshot()["driftscope.rounds.completed", ()].value == ROUNDS)
    engine.close()
    assert engine.core.status().errors == {} and engine.core.status().dropped == {}


def test_metrics_go_on_when_the_trace_is_full(tmp_path: Path, collector: Collector) -> None:
    engine = Engine(tmp_path / "run", settings(collector.url), max_bytes=1)
    engine.serve(replace(SPEC, requests=1))
    until(lambda: sum(engine.core.status().rows.values()) > 0)
    engine.serve(SPEC)
    engine.close()
    assert engine.core.status().dropped["disk_limit"] > 0
    assert collector.value("driftscope.rounds.completed") == ROUNDS + SPEC.rounds
    assert collector.value("driftscope.rows.dropped", cause="disk_limit") > 0


def test_grpc(tmp_path: Path) -> None:
    with over_grpc() as collector:
        found = settings(collector.url, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
        Engine(tmp_path / "run", found).record()
        assert collector.value("driftscope.rounds.completed") == ROUNDS
        assert len(collector.all_spans()) == SPEC.requests


def test_standard_variables(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20me",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_SERVICE_NAME": "chat",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.instance.id=mine",
        "OTEL_TRACES_EXPORTER": "none",
        **FAST,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = settings_from(environ)
    assert found is not None and found.traces is None and found.interval_s == 0.2
    Engine(tmp_path / "run", found).record()
    assert collector.headers[-1]["authorization"] == "Bearer me"
    assert collector.headers[-1]["content-encoding"] == "gzip"
    resource = collector.resource()
    assert resource["service.name"] == "chat" and resource["service.instance.id"] == "mine"
    assert resource["deployment.environment"] == "test"
    assert collector.spans == []
    # The sampler is the standard one too.
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    Engine(tmp_path / "other", settings(collector.url)).record()
    assert collector.all_spans() == []
    assert not any(p.exemplars for p in collector.points().values() if hasattr(p, "exemplars"))


def test_a_span_joins_its_caller_s_trace_and_metrics_point_at_it(
    tmp_path: Path, collector: Collector
) -> None:
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    engine = Engine(tmp_path / "run", settings(collector.url))
    for row in rows(replace(SPEC, requests=1)):
        if isinstance(row, RequestRow):
            row = replace(row, traceparent=f"00-{trace_id}-{span_id}-01")
        engine.put(row)
    until(lambda: len(collector.all_spans()) == 1)
    engine.close()
    (span,) = collector.all_spans()
    assert span.trace_id.hex() == trace_id and span.parent_span_id.hex() == span_id
    kinds = {event.name for event in span.events}
    assert "driftscope.chain.drifted" in kinds
    examples = {
        name: point.exemplars[0]
        for (name, _), point in collector.points().items()
        if getattr(point, "exemplars", None)
    }
    assert set(examples) >= {"gen_ai.server.time_to_first_token", "driftscope.hidden.growth"}
    for example in examples.values():
        assert example.span_id == span.span_id and example.trace_id == span.trace_id


@pytest.mark.parametrize("engine_name", ["vllm", "sglang"])
def test_a_span_follows_the_conventions(
    tmp_path: Path, collector: Collector, engine_name: str
) -> None:
    engine = Engine(tmp_path / "run", settings(collector.url), name=engine_name)
    for row in rows(replace(SPEC, requests=1)):
        if isinstance(row, RequestRow):
            row = replace(row, session="session-7", finish_reason="abort", traceparent=None)
        engine.put(row)
    until(lambda: len(collector.all_spans()) == 1)
    engine.close()
    (span,) = collector.all_spans()
    assert span.name == "generate served" and span.status.code == 2
    texts = {a.key: a.value.string_value for a in span.attributes}
    wanted = {
        "gen_ai.operation.name": "generate",
        "gen_ai.provider.name": engine_name,
        "gen_ai.request.model": "served",
        "gen_ai.conversation.id": "session-7",
        "error.type": "abort",
    }
    assert texts | wanted == texts
    assert {"gen_ai.usage.input_tokens", "gen_ai.latency.time_to_first_token"} <= set(texts)
    (sent,) = collector.spans[-1].resource_spans
    (measured,) = collector.metrics[-1].resource_metrics
    for scoped in (*sent.scope_spans, *measured.scope_metrics):
        assert scoped.schema_url == SCHEMA_URL


def test_labels_come_from_an_allow_list(tmp_path: Path, collector: Collector) -> None:
    found = settings(collector.url, DRIFTSCOPE_METRIC_LABELS="a")
    Engine(tmp_path / "run", found).record(replace(SPEC, labels=("a", "b", None)))
    name = "driftscope.request.acceptance_length"
    assert collector.value(name, label="a") == 2
    assert collector.value(name, label="other") == 4
    assert collector.value(name) == 6


def test_prometheus_is_answered(tmp_path: Path) -> None:
    port = free_port()
    found = settings_from({PROMETHEUS: f"127.0.0.1:{port}"})
    assert found is not None
    engine = Engine(tmp_path / "run", found)
    engine.serve()
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}

    def scraped() -> dict[str, float]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accept)
        with urllib.request.urlopen(request, timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {s.name: s.value for family in families for s in family.samples}

    until(lambda: scraped().get("driftscope_rounds_completed_total") == ROUNDS)
    until(lambda: scraped().get("driftscope_hidden_growth_count") == ROUNDS + SPEC.requests)
    with pytest.raises(TelemetryError, match="give DRIFTSCOPE_PROMETHEUS another port"):
        EngineTelemetry(engine.run, "engine0-13", found, engine.core.status)
    engine.close()


def test_scrapes_from_other_machines_are_answered_only_if_asked_for(tmp_path: Path) -> None:
    for number, (host, where) in enumerate((("", "127.0.0.1"), ("0.0.0.0:", "0.0.0.0"))):
        port = free_port()
        found = settings_from({PROMETHEUS: f"{host}{port}"})
        assert found is not None
        engine = Engine(tmp_path / f"run{number}", found)
        listening = [
            one.laddr.ip
            for one in psutil.Process().net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port
        ]
        engine.close()
        assert listening == [where]


def test_tensor_parallel_ranks_count_chains_once(tmp_path: Path, collector: Collector) -> None:
    spec = replace(SPEC, tensor_parallel=2)
    engine = Engine(tmp_path / "run", settings(collector.url), spec)
    writers = (engine.core, *engine.workers)
    for writer, content in zip(writers, by_source(spec).values(), strict=True):
        assert all(writer.put(row) for row in content)
    engine.close()
    chains = ROUNDS + SPEC.requests
    assert collector.value("driftscope.chains.recorded") == chains
    assert collector.value("driftscope.attention.mass", depth=1, **{"class": "self"}) == 2 * chains
