"""Commands with real servers of the shipped trio: those that a report advises, and --best-k."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.sent_and_recorded import assert_alike

from driftscope.analysis.query.record_views import open_run
from driftscope.pipeline import Inputs, analyze, summarise
from driftscope.trace.reader import read_trace

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]

_COMMAND = re.compile(r"`driftscope ((?:pays|ablate) [^`]+)`")
FEW = {
    "pays": ("--limit", "4", "--concurrency", "2", "--rounds", "1", "--warmup", "1", "-o", "again"),
    "ablate": ("--limit", "5"),
}
"""Options that make a command short."""


def _typed(folder: Path, *words: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    print(done.stdout, done.stderr)
    return done.returncode


def test_what_is_advised_runs(tmp_path: Path) -> None:
    assert _typed(tmp_path, "pays", "trio", *FEW["pays"][:-1], "out") in {0, 3, 4}
    (drafting,) = (
        path for path in (tmp_path / "out").glob("*/server") if path.parent.name != "no speculation"
    )
    found = analyze(Inputs(sources=[drafting], labels=["trio"]))
    texts = [
        text for one in (*found.findings, *found.answers) for text in (one.advice, one.statement)
    ]
    commands = {command for text in texts for command in _COMMAND.findall(text)}
    assert {shlex.split(command)[0] for command in commands} == set(FEW)
    for command in commands:
        words = shlex.split(command)
        assert _typed(tmp_path, *words, *FEW[words[0]]) in {0, 3, 4}, command


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
