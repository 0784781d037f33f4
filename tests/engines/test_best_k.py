"""`driftscope pays --best-k` with real servers of the shipped trio, one after another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sent_and_recorded import assert_alike

from driftscope.analysis.query.record_views import open_run
from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]

START, RUNS = 3, 2
CONFIG = {"method": "eagle3", "model": "eagle31", "num_speculative_tokens": START}
COMMAND = (
    *("pays", "trio", "--best-k", "--most-runs", str(RUNS), "--limit", "12"),
    *("--concurrency", "2", "--prompts", "trio", "--warmup", "2", "--json", "-o", "out"),
    *("--speculative-config", json.dumps(CONFIG)),
)


def test_it_measures_another_k_on_a_real_server(tmp_path: Path) -> None:
    """Also that sender and probe tell the same of every request, round by round."""
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", *COMMAND],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first, second = found["runs"]
    assert first["k"] == START != second["k"]
    assert set(found["measured_k"]) == {START, second["k"]}
    assert found["stopped"] is False
    for run in (first, second):
        summary = summarise(open_run(tmp_path / run["run"]), f"K = {run['k']}")
        assert summary.k == run["k"]
        assert summary.cells
        client, server = (read_trace(tmp_path / run[name]) for name in ("client", "run"))
        assert assert_alike(client, server, "concurrency") > 12
    assert found["doubt"] or found["answer"]
