"""Each example runs as written, on real vLLM with the shipped trio."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from support.command import run_process

from driftscope.analysis.replays import external_id
from driftscope.trace.reader import Trace, read_trace
from driftscope.vocabulary import Ended

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
EXAMPLES = Path(__file__).parents[2] / "examples"
DEPLOYED = ("containers", "monitoring")
"""Examples that are deployed next to a server, with Docker, rather than run."""
ALL = os.environ.get("DRIFTSCOPE_TEST_EXAMPLES", "")
"""Set by `make examples`: they start nine engines together."""
slow = pytest.mark.skipif(not ALL, reason="starts an engine or several: make examples")


def _run(name: str, folder: Path, limit: int) -> Path:
    """Run an example in `folder`, with this interpreter's driftscope; where it wrote to."""
    bin_ = folder / "bin"
    bin_.mkdir()
    for command, call in (("python3", ""), ("driftscope", "-m driftscope")):
        path = bin_ / command
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        path.chmod(0o755)
    environ = {
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "OUT": str(folder / "out"),
        "LIMIT": str(limit),
        "VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0))),
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    done = run_process(EXAMPLES / name / "run.sh", cwd=folder, timeout_s=800, **environ)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return folder / "out"


def _assert_alike(client: Trace, server: Trace, suite: str) -> int:
    """Assert that every request was answered, and that both runs have the same label and the same
    accepted tokens of it, round by round; return the number of requests."""
    rows = client.client.to_pylist()
    assert {row["ended"] for row in rows} == {Ended.ANSWERED}
    labels = server.request.select(["request", "label"]).to_pylist()
    label_of = {external_id(row["request"]): row["label"] for row in labels}
    accepted: defaultdict[str, list[int]] = defaultdict(list)
    for row in server.verify.sort_by("step").to_pylist():
        if row["verified"]:
            accepted[external_id(row["request"])].append(row["accepted"])
    for row in rows:
        assert label_of[row["response"]] == f"replay/{suite}/{row['condition']}"
        assert accepted.get(row["response"], []) == (row["accepted"] or [])
    return len(rows)


def test_every_example_is_listed_and_can_be_run() -> None:
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    listed = (EXAMPLES / "README.md").read_text()
    for name in folders:
        assert f"[{name}]({name})" in listed
        script = EXAMPLES / name / "run.sh"
        assert os.access(script, os.X_OK) or (name in DEPLOYED and not script.exists())
        assert (EXAMPLES / name / "README.md").stat().st_size > 400


@slow
def test_template_change(tmp_path: Path) -> None:
    """Also that sender and probe tell the same of every request, round by round."""
    out = _run("template-change", tmp_path, 6) / "pays"
    client, server = (read_trace(out / "EAGLE-3" / name) for name in ("client", "server"))
    assert _assert_alike(client, server, "template") == 8 * 6 + 4
    report = json.loads((out / "report.json").read_text())
    _, replay = report["replays"]
    assert replay["joined"] == 48 and replay["outside_s"] > 0
    assert len(replay["conditions"]) == 8
    assert [run["label"] for run in report["runs"]] == ["EAGLE-3"]
    assert (out / "report.html").stat().st_size > 10_000


@slow
def test_adopt_eagle31(tmp_path: Path) -> None:
    out = _run("adopt-eagle31", tmp_path, 12) / "pays"
    report = json.loads((out / "report.json").read_text())
    assert [run["label"] for run in report["runs"]] == ["EAGLE-3", "EAGLE-3.1"]
    plain = report["replays"][0]
    assert plain["label"] == "no speculation (client)"
    assert {cell["rounds"] for cell in plain["conditions"]} == {0}
    compared = [pair for pair in report["replays_compared"] if pair["first"] == plain["label"]]
    assert compared and all(pair["same_text"][1] == 12 for pair in compared)


@slow
def test_choose_k(tmp_path: Path) -> None:
    out = _run("choose-k", tmp_path, 6) / "pays"
    report = json.loads((out / "report.json").read_text())
    assert [run["k"] for run in report["runs"]] == [2, 4, 8]
    lengths = [run["acceptance"]["mean_length"] for run in report["runs"]]
    assert lengths == sorted(lengths), "a longer draft is accepted at least as far"


@slow
def test_agent(tmp_path: Path) -> None:
    out = _run("agent", tmp_path, 3)
    rows = read_trace(out / "client").client.to_pylist()
    assert Ended.ANSWERED in {row["ended"] for row in rows}
    assert {row["ended"] for row in rows} <= {Ended.ANSWERED, Ended.REFUSED}
    assert "sender" in (out / "report.html").read_text()
