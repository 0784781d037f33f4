"""`driftscope pays --best-k` with a stand-in for vLLM that leaves a simulated run of the K that it
is started with. Real servers: tests/engines/test_advised.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.simulate import Cost, Truth
from support.standin_engine import write_engine

from driftscope.cli.pays import contenders_of, draft_tokens
from driftscope.errors import UsageError
from driftscope.workloads.contenders import Contender, at_k

TIMEOUT_S = 600
"""Longest time of one search on a busy machine; no test waits for it."""
TRUTH = Truth(
    k=8,
    requests=60,
    rounds=24,
    conditional=(0.85, 0.75, 0.6, 0.45, 0.35, 0.3, 0.3, 0.3),
    batches=(1, 4),
    rates=(0.1,),
    self_last=0.05,
    between=0.2,
    within=0.2,
    cost=Cost(depth_s=0.002, token_s=0.0002, noise=0.02),
)
"""K = 2 or 3 is the best K here."""
SERVER = """
import json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from support.simulate import simulate
from support.stub_server import stub_server
sys.path.insert(0, os.environ["TRUTH_FOLDER"])
from test_best_k import TRUTH
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
config = json.loads(given.get("--speculative-config", "null"))
k = config["num_speculative_tokens"] if config else 0
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(f"{k}\\n")
if str(k) == os.environ.get("STUB_FAILS"):
    raise ValueError(f"no graph for K = {k}")
if os.environ.get("STUB_ANSWERS", str(k)) != str(k):
    time.sleep(600)
trace = Path(os.environ["DRIFTSCOPE_TRACE"])
truth = replace(TRUTH, k=k or TRUTH.k, k_zero_above=None if k else 0, seed=100 + k)
with stub_server(port=int(given["--port"])):
    try:
        signal.pause()
    except KeyboardInterrupt:
        trace.rmdir()
        simulate(trace, truth)
"""
CONFIG = {"method": "eagle3", "model": "d", "num_speculative_tokens": 6}
COMMAND = [
    *("model", "--best-k", "--dtype", "float32", "--limit", "4", "--repeat", "1"),
    *("--concurrency", "2", "-o", "out", "--speculative-config", json.dumps(CONFIG)),
]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """In which vLLM is the stand-in."""
    packages = write_engine(tmp_path / "packages", "vllm.entrypoints.openai.api_server", SERVER)
    path = os.pathsep.join([str(packages), *sys.path])
    return {
        "PYTHONPATH": path,
        "STUB_LOG": str(tmp_path / "log"),
        "TRUTH_FOLDER": str(Path(__file__).parent),
    }


def _bench(folder: Path, environ: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "driftscope", "pays", *COMMAND, *more],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def _served(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "log").read_text().split()]


def _true_tpot_s(k: int) -> float:
    """Return the true time per token at batch 4, near enough for every batch here."""
    import numpy as np

    chains, tokens = np.array([4]), np.array([4 * (k + 1)])
    draft_s = TRUTH.cost.drafting_s(chains, np.array([k]))[0] if k else 0.0
    step_s = float(TRUTH.cost.verify_s(chains, tokens)[0] + draft_s)
    return step_s / (1 + float(TRUTH.marginal()[:k].sum()))


@pytest.mark.process
@pytest.mark.slow
def test_the_search_ends_at_the_fastest_k(environ: dict[str, str], tmp_path: Path) -> None:
    done = _bench(tmp_path, environ, "--json")
    assert done.returncode == 0, done.stderr
    found, served = json.loads(done.stdout), _served(tmp_path)
    assert served[0] == 6
    assert len(set(served)) == len(served) <= 8
    assert [run["k"] for run in found["runs"]] == served
    assert found["choice"]["next"] is None and found["stopped"] is False
    best = min(_true_tpot_s(k) for k in range(9))
    assert _true_tpot_s(found["choice"]["k"]) < 1.05 * best
    assert found["choice"]["measured"] is True
    assert f'"num_speculative_tokens": {found["choice"]["k"]}' in found["command"]
    assert all(Path(tmp_path / run["run"]).is_dir() for run in found["runs"])
    assert "settled after" in done.stderr


@pytest.mark.process
def test_a_server_that_does_not_start_leaves_what_was_measured(
    environ: dict[str, str], tmp_path: Path
) -> None:
    first = _bench(tmp_path, environ, "--most-runs", "1")
    assert first.returncode == 0, first.stderr
    assert "it is not settled; give --most-runs for more" in first.stderr
    next_k = first.stdout.partition("measure K = ")[2].split()[0]
    (tmp_path / "log").unlink()
    done = _bench(tmp_path, {**environ, "STUB_FAILS": next_k}, "-o", "other")
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if "error: the server" in line]
    assert len(errors) == 1 and f"no graph for K = {next_k}" in errors[0]
    assert _served(tmp_path) == [6, int(next_k)]
    assert "K = 6 ran; " in done.stdout, "the advice on what was measured"


@pytest.mark.process
def test_ctrl_c_leaves_what_was_measured(environ: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "driftscope", "pays", *COMMAND]
    process = subprocess.Popen(
        [*command, "-k", "4", "--json"],
        cwd=tmp_path,
        env={**os.environ, **environ, "STUB_ANSWERS": "4"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log, deadline = tmp_path / "log", time.monotonic() + TIMEOUT_S
    try:
        while not (log.exists() and len(_served(tmp_path)) > 1):
            assert time.monotonic() < deadline and process.poll() is None, "no second server"
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["stopped"] is True
    assert [run["k"] for run in found["runs"]] == [4]


@pytest.mark.parametrize(
    ("drafters", "options", "words"),
    [
        ([], [], "give --drafter"),
        (["a"], ["--speculative-config", "{}"], "give either --drafter"),
        ([], ["--speculative-config", "{"], "not JSON"),
    ],
)
def test_what_cannot_be_searched(drafters: list[str], options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        _contender(drafters, None, options)


def _contender(drafters: list[str], k: str | None, options: list[str]) -> Contender:
    return contenders_of("m", drafters, draft_tokens(k), options)[1]


def test_the_users_own_options_are_kept() -> None:
    given = ["--port-range", "1", "--speculative-config", json.dumps({**CONFIG, "x": 1})]
    contender = _contender([], None, given)
    assert contender.options == ["--port-range", "1"]
    assert contender.speculation == {**CONFIG, "x": 1}
    assert at_k(contender, 3).speculation == {**CONFIG, "x": 1, "num_speculative_tokens": 3}
    assert _contender(["d"], "5", []).speculation == {**CONFIG, "num_speculative_tokens": 5}


def test_without_a_draft_there_is_no_drafter() -> None:
    command = at_k(_contender(["d"], "5", []), 0).command(1, Path("run"))
    assert "--no-speculation" in command and "--speculative-config" not in command
