"""The one command of the GPU benchmark: what it had, what cannot run, what is cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cuda.run import STAGES

pytestmark = [pytest.mark.process, pytest.mark.slow]

REPO = Path(__file__).parents[4]
COMMAND = [sys.executable, str(REPO / "benchmarks" / "cuda" / "run.py")]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def had(folder: Path, stage: str, **facts: object) -> None:
    base = {"device": "cpu", "complete": True, "ok": True, "verdict": "fine before"}
    (folder / f"{stage}.json").write_text(json.dumps({**base, **facts}))


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    for stage in STAGES:
        had(tmp_path, stage)
    done = run("--device", "cpu", "--out", tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("fine before") == len(STAGES)
    assert not list(tmp_path.glob("*.log"))


def test_a_finding_that_should_not_be_fails(tmp_path: Path) -> None:
    had(tmp_path, "truth")
    had(tmp_path, "long", ok=False, verdict="growth: worker")
    done = run("truth", "long", "--device", "cpu", "--out", tmp_path)
    assert done.returncode == 1
    assert "MISSED" in done.stdout
    assert "growth: worker" in done.stdout


def test_stages_that_cannot_run_say_why_and_the_others_go_on(tmp_path: Path) -> None:
    had(tmp_path, "long", device="cuda")
    done = run("kernel", "overhead", "long", "--out", tmp_path)
    assert done.returncode == 1
    kernel, overhead, long = done.stdout.splitlines()[1:]
    assert "CANNOT RUN" in kernel and "no CUDA GPU" in kernel
    assert "CANNOT RUN" in overhead
    assert "fine before" in long


def test_results_of_another_device_are_not_taken(tmp_path: Path) -> None:
    had(tmp_path, "kernel", device="cuda")
    done = run("kernel", "--device", "cpu", "--out", tmp_path)
    assert done.returncode == 1
    assert "is of device cuda" in done.stdout


def test_an_unknown_stage_is_a_matter_of_usage(tmp_path: Path) -> None:
    done = run("speed", "--out", tmp_path)
    assert done.returncode == 2
    assert "no stage speed; there are truth, overhead, long, situations, kernel" in done.stderr


def test_a_stage_out_of_time_is_ended_and_goes_on_later(tmp_path: Path) -> None:
    """One cut off while it starts; then let go on to the end, on a CPU."""
    cut = run("kernel", "--device", "cpu", "--out", tmp_path, "--seconds", 1)
    assert cut.returncode == 1
    assert "OUT OF TIME" in cut.stdout
    whole = run("kernel", "--device", "cpu", "--out", tmp_path, "--seconds", 1500)
    assert whole.returncode == 0, (tmp_path / "kernel.log").read_text()[-2000:]
    facts = json.loads((tmp_path / "kernel.json").read_text())
    assert facts["device"] == "cpu" and facts["complete"]
