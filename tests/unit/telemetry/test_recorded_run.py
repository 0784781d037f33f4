"""A recorded run told again: over OTLP to a real receiver, as OpenMetrics text, and in a real
Prometheus."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.collector import Collector, http, over_grpc
from support.hostile.server import Asked, Peer, hostile_server
from support.prometheus import promtool, tool
from support.runs import START_S, Spec, manifest, rows, write_rows, write_run
from support.waiting import free_port, until
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.errors import DamagedTraceError, NoDataError, TelemetryError, UsageError
from driftscope.pipeline import summarise
from driftscope.telemetry import instruments as i
from driftscope.telemetry import recorded_run, settings
from driftscope.telemetry.watch import view
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import UndraftedReason

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


def _sent(
    trace: Trace, interval_s: float = recorded_run.DEFAULT_INTERVAL_S, **more: str
) -> Collector:
    """Return the collector to which the run was sent, with what it received."""
    receiver = over_grpc if more.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" else http
    with receiver() as collector:
        (told,) = recorded_run.replays(trace, interval_s=interval_s)
        recorded_run.send(told, _settings(collector.url, **more))
    return collector


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_figures_are_those_of_analyze(trace: Trace, protocol: str) -> None:
    collector = _sent(trace, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    summary = summarise(trace, "run")
    assert collector.value("driftscope.rounds.completed") == summary.rounds
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


@pytest.mark.process
def test_points_have_the_run_s_own_times(trace: Trace) -> None:
    collector = _sent(trace, interval_s=1.0)
    times = [
        {point.time_unix_nano for point in collector.points(at).values()}
        for at in range(len(collector.metrics))
    ]
    assert len(times) > 3 and all(len(one_time) == 1 for one_time in times)
    ordered = [one_time.pop() / 1e9 for one_time in times]
    assert ordered == sorted(ordered)
    assert START_S <= ordered[0] <= START_S + 2 and ordered[-1] < START_S + 1000
    starts = {p.start_time_unix_nano for p in collector.points().values()}
    assert len(starts - {0}) == 1  # a gauge has none


@pytest.mark.process
def test_deltas_add_up_to_the_whole(trace: Trace) -> None:
    preference = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
    collector = _sent(trace, interval_s=1.0, **preference)
    rounds = 0
    for at in range(len(collector.metrics)):
        rounds += sum(
            point.as_int
            for (name, _), point in collector.points(at).items()
            if name == "driftscope.rounds.completed"
        )
    assert rounds == summarise(trace, "run").rounds


@pytest.mark.process
def test_a_span_per_request_tells_of_the_chains_that_went_wrong(trace: Trace) -> None:
    collector = _sent(trace)
    spans = {
        {a.key: a.value.string_value for a in s.attributes}["driftscope.request.id"]: s
        for s in collector.all_spans()
    }
    assert set(spans) == set(trace.request.column("request").to_pylist())
    verify = trace.verify.to_pandas()
    for name, span in spans.items():
        mine = verify[(verify.request == name) & (verify.verified > 0)]
        numbers = {a.key: a.value.int_value for a in span.attributes}
        assert numbers["driftscope.rounds.completed"] == len(mine)
        assert numbers["driftscope.rounds.rejected"] == (mine.accepted == 0).sum()
        assert span.start_time_unix_nano < span.end_time_unix_nano
        kinds = [event.name for event in span.events]
        assert "driftscope.chain.drifted" in kinds  # growth 2.5 is above the threshold


def test_one_engine_at_k_8_has_fewer_than_500_series(tmp_path: Path) -> None:
    """Counted as Prometheus counts: every bucket, sum and count is one."""
    spec = Spec(k=8, conditional=(0.9,) * 8, undrafted=UndraftedReason.ALL)
    write_run(tmp_path / "run", spec)
    text = recorded_run.to_openmetrics(
        list(recorded_run.replays(read_trace(tmp_path / "run"), interval_s=1e6))
    )
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert 200 < len(series) < 500


def test_command_writes_openmetrics_with_times(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.om"
    done = CliRunner().invoke(app, ["export", str(run), "--prometheus", str(file)])
    assert done.exit_code == 0, done.output
    lines = file.read_text().splitlines()
    assert lines[-1] == "# EOF"
    rounds = [line for line in lines if line.startswith("driftscope_rounds_completed_total{")]
    assert float(rounds[-1].split()[-1]) >= START_S
    assert float(rounds[-1].split()[-2]) == summarise(read_trace(run), "x").rounds


def test_names_of_files_steer_no_terminal(run: Path, tmp_path: Path) -> None:
    for command, option in (("export", "--prometheus"), ("analyze", "-o")):
        file = tmp_path / "a\u202e\x1b[2J\rb.html"
        done = CliRunner().invoke(app, [command, str(run), option, str(file)])
        assert done.exit_code == 0 and file.exists()
        assert "written: " in done.stderr or "replaced: " in done.stderr
        assert r"a\u202e\x1b[2J\x0db.html" in done.stderr
        assert all(line.isprintable() for line in done.stderr.split("\n"))


def test_nothing_to_export(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Spec(requests=0, rounds=0))
    trace = read_trace(tmp_path / "run")
    with pytest.raises(NoDataError):
        list(recorded_run.replays(trace))


@pytest.mark.process
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_is_not_there_is_an_error_within_seconds(
    trace: Trace, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    """One, with what OpenTelemetry's exporter said of the cause, and not its log besides."""
    with http() as collector:
        url = collector.url
    (told,) = recorded_run.replays(trace)
    begun = time.monotonic()
    with pytest.raises(TelemetryError, match=r"did not accept a batch within 5 s \((Failed|Trans)"):
        recorded_run.send(told, _settings(url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol))
    assert time.monotonic() - begun < recorded_run.SEND_S + recorded_run.SEND_SLACK_S + 1
    assert caplog.records == []


@pytest.mark.process
@pytest.mark.parametrize("behaviour", ["silent", "byte-by-byte", "slow-head"])
def test_a_collector_that_hangs_is_an_error_in_time(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setenv(recorded_run.SEND_VARIABLE, "0.5")
    (told,) = recorded_run.replays(trace)
    begun = time.monotonic()
    with (
        hostile_server() as server,
        pytest.raises(TelemetryError, match=r"within 0\.5 s .*OTEL_EXPORTER_OTLP_TIMEOUT allows"),
    ):
        recorded_run.send(told, _settings(server.url(behaviour)))
    assert time.monotonic() - begun < 4


@pytest.mark.process
def test_a_key_of_the_collector_is_not_in_its_error(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(peer: Peer, asked: Asked) -> None:
        peer.answer("", status=f"403 no: {asked.headers['x-api-key']} \x1b[2J")

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=sk-0123456789abcdef")
    (told,) = recorded_run.replays(trace)
    with (
        hostile_server(refuses=refuses) as server,
        pytest.raises(TelemetryError, match=r"no: \*\*\*") as caught,
    ):
        recorded_run.send(told, _settings(server.url("refuses")))
    assert str(caught.value).isprintable()


def test_a_time_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch, trace: Trace) -> None:
    (told,) = recorded_run.replays(trace)
    for value in ("soon", "0", "nan", "inf"):
        monkeypatch.setenv(recorded_run.SEND_VARIABLE, value)
        with pytest.raises(TelemetryError, match="give a number of seconds"):
            recorded_run.send(told, _settings("http://127.0.0.1:9"))


def _with(path: Path, record: str, column: str, value: float) -> Trace:
    """The simulated run, with another value in one row of `record`."""
    changed = False

    def made() -> Iterator[Any]:
        nonlocal changed
        for row in rows(SPEC):
            if type(row).__name__ == record and not changed:
                changed = True
                yield replace(row, **{column: value})
            else:
                yield row

    create_run(path, manifest(SPEC))
    write_rows(path, "worker0-1", made())
    assert changed
    return read_trace(path)


def test_a_clock_that_was_not_set_costs_no_moment_per_interval(
    trace: Trace, tmp_path: Path
) -> None:
    """A row of 1970 beside those of today: 56 years of empty intervals are passed over."""
    whole = len(next(recorded_run.replays(trace)).moments)
    begun = time.monotonic()
    (told,) = recorded_run.replays(_with(tmp_path / "run", "VerifyRow", "time_s", 5.0))
    assert time.monotonic() - begun < 10
    assert told.start_s == 5.0 and len(told.moments) <= whole + 3
    last = told.moments[-1].points
    assert view(last).rounds == SPEC.requests * SPEC.rounds


def test_a_pause_is_flat_until_its_end(tmp_path: Path) -> None:
    """A rate over the first interval after it has all of the interval's rows, and no others."""
    (told,) = recorded_run.replays(
        _with(tmp_path / "run", "VerifyRow", "time_s", 5.0), interval_s=1.0
    )
    first, before, *_ = told.moments
    assert first.time_s == 6.0 and START_S - 1.0 <= before.time_s <= START_S + 1.0
    assert view(first.points).rounds == view(before.points).rounds == 1


@pytest.mark.parametrize(
    ("record", "column", "value"),
    [
        ("VerifyRow", "time_s", float("nan")),
        ("VerifyRow", "time_s", float("inf")),
        ("VerifyRow", "time_s", -1.0),
        ("StepRow", "time_s", 1e300),
        ("VerifyRow", "verified", (1 << 31) - 1),
        ("DraftRow", "layers", (1 << 15) - 1),
    ],
)
def test_a_row_that_no_engine_writes_is_said(
    tmp_path: Path, record: str, column: str, value: float
) -> None:
    begun = time.monotonic()
    with pytest.raises(DamagedTraceError, match=column):
        list(recorded_run.replays(_with(tmp_path / "run", record, column, value)))
    assert time.monotonic() - begun < 10


def test_more_points_than_anyone_reads_are_refused(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_run, "MAX_MOMENTS", 4)
    with pytest.raises(UsageError, match=r"--interval 0\.01: .* give --interval \d+") as caught:
        list(recorded_run.replays(trace, interval_s=0.01))
    enough = float(str(caught.value).rpartition(" ")[2])
    assert list(recorded_run.replays(trace, interval_s=enough))


def test_nowhere_to_export_to_is_a_usage_error(run: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(run)])
    assert "give --otlp URL, --prometheus FILE, or --format and -o" in str(done.exception)


class Server:
    """Prometheus, and the moment that it is asked about."""

    def __init__(self, url: str, at_s: float) -> None:
        self._url, self._at_s = url, at_s

    def ask(self, expr: str) -> float:
        query = urllib.parse.urlencode({"query": expr, "time": f"{self._at_s:.3f}"})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=10) as answer:
            (found,) = json.load(answer)["data"]["result"]
        return float(found["value"][1])


@pytest.fixture(scope="module")
def prometheus(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    told = list(recorded_run.replays(trace, interval_s=5.0))
    (folder / "run.om").write_text(recorded_run.to_openmetrics(told))
    promtool("tsdb", "create-blocks-from", "openmetrics", folder / "run.om", folder / "data")
    (folder / "prometheus.yml").write_text("{}\n")
    port = free_port()
    command = [
        tool("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), limit_s=60)
        yield Server(f"http://127.0.0.1:{port}", told[0].moments[-1].time_s + 1)
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.URLError:
        return False
    return True


@pytest.mark.prometheus
@pytest.mark.parametrize("q", [0.5, 0.9])
@pytest.mark.parametrize(
    ("metric", "instrument", "column"),
    [
        ("driftscope_acceptance_length", i.LENGTH, "accepted"),
        ("gen_ai_server_time_per_output_token_seconds", i.TPOT, "tpot_s"),
        ("driftscope_draft_duration_seconds", i.DRAFT_TIME, "draft_s"),
    ],
)
def test_quantiles_are_right_within_a_bucket(
    trace: Trace, prometheus: Server, metric: str, instrument: i.Instrument, column: str, q: float
) -> None:
    verify = trace.verify.to_pandas()
    values = {
        "accepted": 1.0 + verify[verify.verified > 0].accepted,
        "tpot_s": trace.request.to_pandas().tpot_s,
        "draft_s": trace.step.to_pandas().draft_s,
    }[column]
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    at = int(np.searchsorted(instrument.bounds, exact, side="left"))
    low = instrument.bounds[at - 1] if at else 0.0
    found = prometheus.ask(f"histogram_quantile({q}, {metric}_bucket)")
    assert low <= found <= instrument.bounds[at]
