"""A real server exports to a collector that refuses, hangs, answers 500, dies and returns, and
answers a scrape."""

from __future__ import annotations

import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.collector import ERROR, HANG, OK, http
from support.engine_process.serving import serve
from support.waiting import free_port, until

from driftscope.pipeline import summarise
from driftscope.telemetry.settings import METRIC_REGIONS
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Region
from engines.test_server import ask

pytestmark = pytest.mark.vllm
TOKENS = 24
REFUSES, DIED = "refuses", "died"
"""Collector states: not started yet, and no longer running."""
REQUESTS = 5 * 4 + 1
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _series(port: int) -> int:
    """Return the number of series as Prometheus counts them: every bucket, sum and count is one."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return sum(not line.startswith(b"#") for line in answer.read().splitlines())


def _scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    out: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            out[sample.name] = out.get(sample.name, 0.0) + sample.value
    return out


def test_output_is_untouched_and_counts_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    port, otlp = free_port(), free_port()
    options = (
        "--otlp",
        f"http://127.0.0.1:{otlp}",
        "--prometheus",
        f"127.0.0.1:{port}",
        "--otlp-traces-endpoint",
        "http://127.0.0.1:9/v1/traces",
    )
    with serve(tmp_path, *options, environ={METRIC_REGIONS: "on"}) as server:
        texts = {REFUSES: [_text(a) for a in ask(server, 4, TOKENS)]}
        with http(port=otlp) as first:
            for behaviour in (OK, HANG, ERROR):
                first.behaviour = behaviour
                texts[behaviour] = [_text(a) for a in ask(server, 4, TOKENS)]
                asked = first.asked
                until(lambda asked=asked: first.asked > asked)
        texts[DIED] = [_text(a) for a in ask(server, 4, TOKENS)]
        assert all(texts[name] == texts[OK] for name in texts)
        with http(port=otlp) as collector:
            server.complete(
                "traced", prompt="def f(", max_tokens=4, headers={"traceparent": PARENT}
            )
            until(lambda: _scraped(port).get("driftscope_requests_total") == REQUESTS)
            until(lambda: bool(collector.metrics))
            scraped = _scraped(port)
            assert 200 < _series(port) < 500
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(60) == 0
        trace = read_trace(server.run)
        summary = summarise(trace, "run")
        assert trace.problems == ()
        rounds = collector.value("driftscope.rounds.completed")
        assert rounds == scraped["driftscope_rounds_completed_total"] == summary.rounds
        for depth in range(1, 9):
            reached = collector.value("driftscope.rounds.reached", depth=depth)
            assert reached == sum(summary.acceptance.histogram[depth:])
        by_region = summarise(trace, "run", by="region").segments
        assert {each.label for each in by_region} <= set(Region.ALL)
        for each in by_region:
            assert collector.value("driftscope.region.rounds", region=each.label) == each.rounds
        assert scraped["driftscope_region_rounds_total"] == summary.rounds
        assert collector.value("driftscope.requests") == summary.requests == REQUESTS
        assert collector.value("driftscope.chains.recorded") == summary.recording.chains
        assert collector.value("driftscope.export.attempts", outcome="failure") > 0
        assert collector.value("driftscope.export.errors") == 0
        assert collector.value("gen_ai.server.request.duration") == REQUESTS
        for (name, labels), point in collector.points().items():
            having = dict(labels)
            assert having["gen_ai.request.model"] == "tiny", name
            assert having["gen_ai.provider.name"] == "vllm", name
            assert having.get("gen_ai.operation.name", "text_completion") == "text_completion"
            short = {key.rpartition(".")[2]: value for key, value in labels}
            if name == "driftscope.attention.mass" and short["class"] == "self":
                assert summary.attention.self_mass is not None
                expected = summary.attention.self_mass[int(short["depth"]) - 1]
                assert point.sum / point.count == pytest.approx(expected, abs=1e-4)
        spans = [*first.all_spans(), *collector.all_spans()]
        assert len(spans) == REQUESTS
        (traced,) = [s for s in spans if s.trace_id.hex() == PARENT.split("-")[1]]
        assert traced.parent_span_id.hex() == PARENT.split("-")[2]
        assert traced.name == "text_completion tiny"


def _text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])
