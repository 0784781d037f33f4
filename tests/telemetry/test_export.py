"""A recorded run told again: over OTLP to a real receiver, and as OpenMetrics text."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.collector import http, over_grpc
from support.runs import START_S, Spec, write_run
from typer.testing import CliRunner

from driftscope.analysis.summarise import summarise
from driftscope.cli.app import app
from driftscope.errors import NoDataError, TelemetryError
from driftscope.telemetry import replay, settings
from driftscope.trace.reader import Trace, read_trace

SPEC = Spec(undrafted=("k_zero", "preempted"), requests=12, labels=("a", "b"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "run"
    write_run(path, SPEC)
    return path


@pytest.fixture(scope="module")
def trace(run: Path) -> Trace:
    return read_trace(run)


def _settings(url: str, **more: str) -> settings.Settings:
    found = settings.settings_from({settings.OTLP: url, **more})
    assert found is not None
    return found


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_figures_are_those_of_analyze(trace: Trace, protocol: str) -> None:
    receiver = http if protocol == "http/protobuf" else over_grpc
    with receiver() as collector:
        (told,) = replay.replays(trace)
        replay.send(told, _settings(collector.url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol))
    summary = summarise(trace, "run")
    assert collector.value("driftscope.rounds") == summary.rounds
    histogram = summary.acceptance.histogram
    assert collector.value("driftscope.tokens.accepted") == sum(
        n * count for n, count in enumerate(histogram)
    )
    for depth in range(1, SPEC.k + 1):
        reached = collector.value("driftscope.rounds.reached", depth=depth)
        assert reached == sum(histogram[depth:])
    assert collector.value("driftscope.rounds.rejected") == histogram[0]
    assert collector.value("driftscope.steps.undrafted", reason="k_zero") == 1
    assert collector.value("driftscope.requests") == summary.requests
    assert collector.value("driftscope.chains.recorded") == summary.recording.chains
    assert summary.attention.self_mass is not None and summary.hidden.fed_rms is not None
    for (name, labels), point in collector.points().items():
        short = {key.rpartition(".")[2]: value for key, value in labels}
        if name == "driftscope.attention.mass" and short["class"] == "self":
            expected = summary.attention.self_mass[int(short["depth"]) - 1]
            assert point.sum / point.count == pytest.approx(expected, abs=1e-6)
        if name == "driftscope.hidden.rms" and short["place"] == "fed":
            expected = summary.hidden.fed_rms[int(short["depth"]) - 1]
            assert point.sum / point.count == pytest.approx(expected, rel=1e-6)


def test_points_have_the_run_s_own_times(trace: Trace) -> None:
    with http() as collector:
        (told,) = replay.replays(trace, interval_s=1.0)
        replay.send(told, _settings(collector.url))
    times = [
        {point.time_unix_nano for point in collector.points(at).values()}
        for at in range(len(collector.metrics))
    ]
    assert len(times) > 3 and all(len(each) == 1 for each in times)
    ordered = [each.pop() / 1e9 for each in times]
    assert ordered == sorted(ordered)
    assert START_S <= ordered[0] <= START_S + 2 and ordered[-1] < START_S + 1000
    starts = {p.start_time_unix_nano for p in collector.points().values()}
    assert len(starts - {0}) == 1  # a gauge has none


def test_deltas_add_up_to_the_whole(trace: Trace) -> None:
    preference = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
    with http() as collector:
        (told,) = replay.replays(trace, interval_s=1.0)
        replay.send(told, _settings(collector.url, **preference))
    rounds = 0
    for at in range(len(collector.metrics)):
        rounds += sum(
            point.as_int
            for (name, _), point in collector.points(at).items()
            if name == "driftscope.rounds"
        )
    assert rounds == summarise(trace, "run").rounds


def test_a_span_per_request_tells_of_the_chains_that_went_wrong(trace: Trace) -> None:
    with http() as collector:
        (told,) = replay.replays(trace)
        replay.send(told, _settings(collector.url))
    spans = {
        {a.key: a.value.string_value for a in s.attributes}["driftscope.request.id"]: s
        for s in collector.all_spans()
    }
    assert set(spans) == set(trace.request.column("request").to_pylist())
    verify = trace.verify.to_pandas()
    for name, span in spans.items():
        mine = verify[(verify.request == name) & (verify.drafted > 0)]
        numbers = {a.key: a.value.int_value for a in span.attributes}
        assert numbers["driftscope.rounds"] == len(mine)
        assert numbers["driftscope.rounds.rejected"] == (mine.accepted == 0).sum()
        assert span.start_time_unix_nano < span.end_time_unix_nano
        kinds = [event.name for event in span.events]
        assert "driftscope.chain.drifted" in kinds  # growth 2.5 is above the threshold


def test_one_engine_at_k_8_has_fewer_than_500_series(tmp_path: Path) -> None:
    """Counted as Prometheus counts: every bucket, sum and count is one."""
    spec = Spec(k=8, conditional=(0.9,) * 8, undrafted=("k_zero", "preempted", "context_limit",
                "token_budget", "structured_output", "no_draft"))  # fmt: skip
    write_run(tmp_path / "run", spec)
    text = replay.to_openmetrics(list(replay.replays(read_trace(tmp_path / "run"), interval_s=1e6)))
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert 200 < len(series) < 500


def test_command_writes_openmetrics_with_times(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.om"
    done = CliRunner().invoke(app, ["export", str(run), "--prometheus", str(file)])
    assert done.exit_code == 0, done.output
    lines = file.read_text().splitlines()
    assert lines[-1] == "# EOF"
    rounds = [line for line in lines if line.startswith("driftscope_rounds_total{")]
    assert float(rounds[-1].split()[-1]) >= START_S
    assert float(rounds[-1].split()[-2]) == summarise(read_trace(run), "x").rounds


def test_nothing_to_export(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Spec(requests=0, rounds=0))
    trace = read_trace(tmp_path / "run")
    with pytest.raises(NoDataError):
        list(replay.replays(trace))


def test_a_collector_that_takes_nothing_is_an_error(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One, with what OpenTelemetry's exporter said of the cause, and not its log besides."""
    with http() as collector:
        url = collector.url
    (told,) = replay.replays(trace)
    waits: list[float] = []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with pytest.raises(TelemetryError, match=r"took nothing in 6 attempts \(Failed to export"):
        replay.send(told, _settings(url), wait=waits.append)
    assert caplog.records == []
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_nowhere_to_export_to_is_a_usage_error(run: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(run)])
    assert "give --otlp URL or --prometheus FILE" in str(done.exception)
