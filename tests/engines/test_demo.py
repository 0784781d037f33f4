"""`driftscope demo` as a new user runs it, and the required content of its report on the trio."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.demonstration import LABELS, PARTS_AFTER, assert_shows_the_finding
from typer.testing import CliRunner

from driftscope.cli.app import app

pytestmark = pytest.mark.vllm


def run_demo(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", "demo", "-o", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert str(folder / "report.html") in done.stdout + done.stderr
    assert "next: driftscope pays trio" in done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def assert_compare_says_which_is_better(folder: Path) -> None:
    runs = [str(folder / "runs" / label) for label in LABELS]
    done = CliRunner().invoke(app, ["compare", *runs, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["verdict"].startswith(f"eagle3.1 accepts more from depth {PARTS_AFTER + 1} on")
    depths = {d["depth"]: d for d in found["differences"] if d["segment"] == "" and d["depth"]}
    assert len(depths) == 8
    for depth in range(PARTS_AFTER + 1, 9):
        assert depths[depth]["differs"]
        assert depths[depth]["interval"]["low"] > 0


def test_demo_on_live_vllm_shows_the_finding(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    report = run_demo(folder)
    assert_shows_the_finding(report, folder)
    (parting,) = [f for f in report["findings"] if f["id"] == "runs_part"]
    assert parting["evidence"]["depth"] - 1 == PARTS_AFTER
    assert_compare_says_which_is_better(folder)
    assert {run["manifest"]["engine"] for run in report["runs"]} == {"vllm"}
    for run in report["runs"]:
        # Two conditions of 64 prompts; an answer that ends with its first token has no round.
        assert run["requests"] == pytest.approx(2 * 64, abs=2)
