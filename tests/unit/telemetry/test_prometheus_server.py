"""A run's figures in a real Prometheus equal those of `driftscope analyze`."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from support.promtool import promtool, tool
from support.runs import Spec, write_run

from driftscope.pipeline import summarise
from driftscope.telemetry import instruments as i
from driftscope.telemetry import recorded_run
from driftscope.trace.reader import Trace, read_trace

pytestmark = pytest.mark.prometheus

SPEC = Spec(
    k=8,
    conditional=(0.9, 0.8, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5),
    requests=30,
    rounds=20,
    undrafted=("k_zero",),
)


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
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("prometheus") / "run"
    write_run(path, SPEC)
    return read_trace(path)


@pytest.fixture(scope="module")
def prometheus(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    told = list(recorded_run.replays(trace, interval_s=5.0))
    (folder / "run.om").write_text(recorded_run.to_openmetrics(told))
    promtool("tsdb", "create-blocks-from", "openmetrics", folder / "run.om", folder / "data")
    (folder / "prometheus.yml").write_text("{}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        _wait(f"http://127.0.0.1:{port}/-/ready")
        yield Server(f"http://127.0.0.1:{port}", told[0].moments[-1].time_s + 1)
    finally:
        process.terminate()
        process.wait(30)


def _wait(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "Prometheus did not start"
            time.sleep(0.2)


def test_counts_are_equal(trace: Trace, prometheus: Server) -> None:
    summary = summarise(trace, "run")
    histogram = summary.acceptance.histogram
    assert prometheus.ask("driftscope_rounds_total") == summary.rounds
    assert prometheus.ask("driftscope_requests_total") == summary.requests
    assert prometheus.ask("driftscope_chains_recorded_total") == summary.recording.chains
    assert prometheus.ask("driftscope_steps_undrafted_total") == 1
    for depth in range(1, SPEC.k + 1):
        reached = prometheus.ask(f'driftscope_rounds_reached_total{{driftscope_depth="{depth}"}}')
        assert reached == sum(histogram[depth:])


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
        "accepted": 1.0 + verify[verify.drafted > 0].accepted,
        "tpot_s": trace.request.to_pandas().tpot_s,
        "draft_s": trace.step.to_pandas().draft_s,
    }[column]
    exact = float(np.quantile(values, q, method="inverted_cdf"))
    at = int(np.searchsorted(instrument.bounds, exact, side="left"))
    low = instrument.bounds[at - 1] if at else 0.0
    found = prometheus.ask(f"histogram_quantile({q}, {metric}_bucket)")
    assert low <= found <= instrument.bounds[at]
