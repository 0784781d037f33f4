"""Rounds by kind of text in metrics equal those of `analyze --by region`."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.runs import Spec, manifest, rows
from support.simulate import Truth, simulate
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.pipeline import summarise
from driftscope.telemetry.collect.region_counter import RegionCounter
from driftscope.telemetry.collect.tally import Tally
from driftscope.telemetry.export import engine_telemetry, recorded_run
from driftscope.telemetry.export.settings import METRIC_REGIONS, PROMETHEUS, settings_from
from driftscope.trace.format.records import RequestRow, VerifyRow
from driftscope.trace.read.reader import read_trace
from driftscope.trace.write.run_directory import create_run
from driftscope.trace.write.writer import TraceWriter
from driftscope.vocabulary import Region

TRUTH = Truth(
    k=4,
    requests=20,
    rounds=20,
    conditional=(0.8, 0.7, 0.6, 0.5),
    regions={"prose": (0.5, 0.0), "json": (0.3, -1.0), "code": (0.2, 0.5)},
)
Counts = dict[str, dict[str, float]]
"""Value by region of each counter."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("regions") / "run", TRUTH)


def parsed(text: str) -> Counts:
    """Return the counters by region of an OpenMetrics text, with their last values."""
    found: Counts = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.name.startswith("driftscope_region_"):
                region = sample.labels["driftscope_region"]
                found.setdefault(family.name, {})[region] = sample.value
    return found


def exported(run: Path, *, regions: bool = True) -> Counts:
    told = list(recorded_run.replays(read_trace(run), regions=regions))
    return parsed(recorded_run.to_openmetrics(told))


def test_rounds_and_lengths_are_those_of_analyze(run: Path) -> None:
    found = exported(run)
    segments = summarise(read_trace(run), "run", by="region").segments
    rounds = found["driftscope_region_rounds"]
    assert rounds == {each.label: each.rounds for each in segments}
    assert set(rounds) == set(TRUTH.regions) <= set(Region.ALL)
    for each in segments:
        accepted = found["driftscope_region_tokens_accepted"][each.label]
        assert 1 + accepted / each.rounds == pytest.approx(each.mean_length)
        assert found["driftscope_region_tokens_proposed"][each.label] == 4 * each.rounds


def test_nothing_is_counted_by_region_unless_asked_for(run: Path) -> None:
    assert exported(run, regions=False) == {}


@pytest.mark.parametrize(("value", "some"), [("on", True), ("off", False), ("", False)])
def test_the_command_reads_the_setting(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, some: bool
) -> None:
    monkeypatch.setenv(METRIC_REGIONS, value)
    file = tmp_path / "run.om"
    done = CliRunner().invoke(app, ["export", str(run), "--prometheus", str(file)])
    assert done.exit_code == 0, done.output
    assert bool(parsed(file.read_text())) is some


def test_a_run_without_regions_has_no_series(tmp_path: Path) -> None:
    assert exported(simulate(tmp_path / "run", replace(TRUTH, regions={}))) == {}


@pytest.mark.process
def test_a_live_engine_answers_with_them(tmp_path: Path) -> None:
    spec, port = Spec(requests=4), _free_port()
    create_run(tmp_path / "run", manifest(spec))
    found = settings_from({PROMETHEUS: str(port), METRIC_REGIONS: "1"})
    assert found is not None and found.regions
    writer = TraceWriter(tmp_path / "run", source="engine0-11")
    telemetry = engine_telemetry.EngineTelemetry(
        tmp_path / "run", writer.source, found, writer.status
    )
    writer.subscribe(telemetry.on_batches)
    for row in rows(spec):
        if isinstance(row, RequestRow):
            half = row.output_tokens // 2
            row = replace(row, region_starts=[0, half], region_codes=[1, 3], region_copies=[])
        if isinstance(row, RequestRow | VerifyRow):
            writer.put(row)
    writer.close()
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accept)
    with urllib.request.urlopen(request, timeout=10) as answer:
        scraped = parsed(answer.read().decode())
    telemetry.close()
    segments = summarise(read_trace(tmp_path / "run"), "run", by="region").segments
    rounds = scraped["driftscope_region_rounds"]
    assert rounds == {each.label: each.rounds for each in segments}
    assert set(rounds) == {"code", "json"}


def test_kept_rounds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests whose end is never recorded are forgotten, the oldest first."""
    monkeypatch.setattr("driftscope.telemetry.collect.region_counter.REMEMBERED_ROUNDS", 5)
    tally = Tally()
    counter = RegionCounter(tally)
    for name in ("a", "b", "c"):
        for position in (10, 12):
            counter._keep(name, [position, 3, 1])
    for name in ("a", "b", "c"):
        row = {"request": name, "prompt_tokens": 10, "region_starts": [0], "region_codes": [0]}
        counter.finished(row)
    values = {name: point.value for (name, _), point in tally.snapshot().items()}
    assert values["driftscope.region.rounds"] == 4
    assert values["driftscope.region.tokens.accepted"] == 4


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
