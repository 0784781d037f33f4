"""Findings of `driftscope doctor` on a machine with everything installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.runs import Spec, write_run

from driftscope_probes.server import doctor
from driftscope_probes.server.doctor import catalogue
from driftscope_probes.vllm.support import HOOKS, KINDS

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRIFTSCOPE_", "VLLM_"))}
    return subprocess.run(
        [sys.executable, "-m", "driftscope", "doctor", "--json"],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture(scope="module")
def checks(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_json_is_the_only_thing_on_stdout(checks: list[dict[str, Any]]) -> None:
    for check in checks:
        assert set(check) == {"topic", "ok", "detail", "hint"}
        assert check["ok"] in (True, False, None)


@pytest.mark.parametrize("seam", HOOKS)
def test_every_hook_holds_in_the_installed_vllm(checks: list[dict[str, Any]], seam: str) -> None:
    found = [check for check in checks if check["topic"] == f"hook {seam}"]
    assert len(found) == len(HOOKS[seam])
    for check in found:
        # Without Triton V2 is not needed, and not judged.
        assert check["ok"] is True or (seam == "v2" and check["ok"] is None), check["detail"]


def test_what_the_report_of_a_bug_needs_is_there(checks: list[dict[str, Any]]) -> None:
    topics = {check["topic"] for check in checks}
    assert topics >= {"Python", "driftscope", "torch", "vLLM", "plugin", "settings"}
    assert topics >= {"device", "runner", "attention backends", "recorded"}
    assert {check.topic for check in catalogue()} == {f"drafter {kind.name}" for kind in KINDS}


def test_the_default_captured_layers_are_the_installed_vllms(
    checks: list[dict[str, Any]],
) -> None:
    (found,) = [check["detail"] for check in checks if check["topic"] == "captured layers"]
    assert "this vLLM captures 2, 16, 29 of a target with 32 layers" in found


def _of_run(run: Path) -> dict[str, str]:
    return {check.topic: check.detail for check in doctor._run(run)}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("config", "1, 2, 3 (named in the drafter's config)"),
        ("engine default", "1, 2, 3 (the engine's default: the drafter's config names none"),
        (None, "1, 2, 3 (not recorded how they were chosen)"),
    ],
)
def test_a_recorded_run_says_what_its_engine_captured(
    tmp_path: Path, source: str | None, said: str
) -> None:
    run = write_run(tmp_path / "run", Spec(aux_layers_source=source))
    assert _of_run(run)["run's captured layers"].startswith(said)


def test_a_recorded_run_says_how_much_memory_the_probe_takes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec())
    assert "probe's memory" not in _of_run(run)
    stated = json.loads((run / "manifest.json").read_text()) | {"device_bytes": 2_340_000}
    (run / "manifest.json").write_text(json.dumps(stated))
    assert _of_run(run)["probe's memory"] == "at most 2.3 MB on each rank's device"


def test_a_run_that_names_no_captured_layers_or_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(aux_layers=()))
    assert _of_run(run)["run's captured layers"] == "none"
    assert "no such directory" in _of_run(tmp_path / "nothing")["run"]


def test_the_exit_code_says_whether_a_live_vllm_can_be_recorded(
    done: subprocess.CompletedProcess[str], checks: list[dict[str, Any]]
) -> None:
    problems = [check for check in checks if check["ok"] is False]
    assert done.returncode == (1 if problems else 0), problems
