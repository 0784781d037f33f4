"""`driftscope demo` as a new user runs it, and the required content of its report on the trio."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.trace.read.reader import read_trace
from driftscope_lab.demo import LABELS as DEMO_LABELS
from driftscope_lab.evaluation.evaluate import EVALUATION
from driftscope_lab.trio import trio_path

LABELS = ("eagle3", "eagle3.1")
GROWS, STEADY = 1.5, 1.2
"""Bounds of the fed RMS at depth 8 over depth 1: the trio's model cards state 2.8 and 1.0."""
PARTS_AFTER = 3
FEW = 32
"""Prompts for the reference engine, which shows the finding with half of them."""


def run_demo(folder: Path, *command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *command, "-o", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert str(folder / "report.html") in done.stdout + done.stderr
    assert "next: driftscope serve trio" in done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def assert_shows_the_finding(report: dict[str, Any], folder: Path) -> None:
    runs = {run["label"]: run for run in report["runs"]}
    assert tuple(runs) == LABELS
    fed = {label: run["hidden"]["fed_rms"] for label, run in runs.items()}
    assert fed["eagle3"][7] / fed["eagle3"][0] > GROWS
    assert fed["eagle3.1"][7] / fed["eagle3.1"][0] < STEADY
    (parting,) = [f for f in report["findings"] if f["id"] == "runs_part"]
    assert parting["evidence"]["depth"] - 1 == PARTS_AFTER
    for run in runs.values():
        assert run["attention"]["self"][7] > run["attention"]["self"][1] > 0
    page = (folder / "report.html").read_text()
    assert "Attention moves to the chain's own tokens" in page.replace("&#x27;", "'")
    assert "This target has no attention sink" in page


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


@pytest.mark.vllm
def test_demo_on_live_vllm_agrees_with_the_model_cards(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    report = run_demo(folder, "-m", "driftscope", "demo")
    assert_shows_the_finding(report, folder)
    assert_compare_says_which_is_better(folder)
    assert {run["probe"]["engine"].split()[0] for run in report["runs"]} == {"vllm"}
    cards = json.loads((trio_path() / EVALUATION).read_text())
    for run, drafter in zip(report["runs"], ("eagle3", "eagle31"), strict=True):
        mine = [card for card in cards if card["drafter"] == drafter]
        rounds = sum(card["rounds"] for card in mine)
        # Prompts are equal and decoding is greedy: only near ties between float orders can differ.
        assert run["rounds"] == pytest.approx(rounds, rel=0.01)
        assert run["requests"] == pytest.approx(len(mine), abs=2)


WITHOUT_VLLM = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "vllm" else real(name, *a)
from driftscope.cli.app import main
main()
"""


@pytest.mark.process
@pytest.mark.slow
def test_demo_without_vllm_says_so_and_uses_the_reference_engine(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    report = run_demo(folder, "-c", WITHOUT_VLLM, "demo", "--prompts", str(FEW))
    assert_shows_the_finding(report, folder)
    assert {run["probe"]["engine"].split()[0] for run in report["runs"]} == {"reference"}
    assert {run["requests"] for run in report["runs"]} == {FEW * len(DEMO_LABELS)}
    assert read_trace(folder / "runs" / "eagle3").problems == ()
