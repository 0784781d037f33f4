"""`make demo` as a new user runs it, and the required content of its report on the trio."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from driftscope.cli.app import app

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
PROMPTS = 20
FEWER = ("-k", "8", "--limit", str(PROMPTS), "--distributed-executor-backend", "uni")
GROWS, STEADY = 1.5, 1.2
"""Bounds of the fed RMS at depth 8 over depth 1: `make demo` prints 2.29 and 1.00."""


def run_demo(folder: Path) -> dict[str, Any]:
    """Run the command of the Makefile at K = 8 alone, with three servers instead of five, fewer
    prompts and engines without a process for the worker; it says yes, no or cannot tell by its
    exit code."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(r"^demo:.*\n\t\$\(BIN\)/driftscope (.*) \|\|", makefile, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", *shlex.split(line), *FEWER, "-o", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode in (0, 3, 4), done.stderr
    assert done.stdout.startswith(("pays: yes.", "pays: no.", "pays: cannot tell."))
    assert f"written: {folder / 'report.html'}" in done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_demo_on_live_vllm_shows_the_finding(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    report = run_demo(folder)
    runs = {run["label"]: run for run in report["runs"]}
    assert list(runs) == ["EAGLE-3", "EAGLE-3.1"]
    for run in runs.values():
        assert run["manifest"]["engine"] == "vllm"
        # With 4 to warm up; an answer that ends with its first token has no round.
        assert run["requests"] == pytest.approx(PROMPTS + 4, abs=2)
    fed = {label: run["hidden"]["fed_rms"] for label, run in runs.items()}
    assert fed["EAGLE-3"][7] / fed["EAGLE-3"][0] > GROWS
    assert fed["EAGLE-3.1"][7] / fed["EAGLE-3.1"][0] < STEADY
    findings = {(finding["id"], *finding["runs"]): finding for finding in report["findings"]}
    assert findings["hidden_state_grows", "EAGLE-3"]["severity"] == "high"
    assert ("hidden_state_stable", "EAGLE-3.1") in findings
    headline = report["first_screen"]["headline"]
    assert "speculation" in headline and "× as fast as without" in headline, "does it pay, first"
    assert "This target has no attention sink" not in (folder / "report.html").read_text()
    servers = [str(folder / label / "server") for label in runs]
    done = CliRunner().invoke(app, ["compare", *servers, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["verdict"].startswith("EAGLE-3.1")
