"""A vLLM with changed internals is reported by doctor, and never recorded wrongly.

The folder links to the installed vLLM, except for copies of three files in which methods are
renamed everywhere: it still serves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.engine_process.job import MAX_TOKENS, Job, run_jobs
from verification.harmless import JOBS

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
RENAMED = {
    "v1/spec_decode/llm_base_proposer.py": ("propose", "SpecDecodeBaseProposer"),
    "v1/worker/gpu_model_runner.py": ("propose", "SpecDecodeBaseProposer"),  # where it is called
    "v1/core/sched/scheduler.py": ("_free_request", "Scheduler"),
}
"""File -> a method that the probe hooks, and its class."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that precedes the installed vLLM."""
    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    folder = tmp_path_factory.mktemp("changed")
    (installed,) = spec.submodule_search_locations
    shutil.copytree(installed, folder / "vllm", copy_function=os.symlink)
    for name, (method, _) in RENAMED.items():
        path = folder / "vllm" / name
        text = path.read_text()
        # Bytecode goes with its source: the other files' is as good here as where it lies.
        for old in (path, *(path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")):
            old.unlink()
        path.write_text(re.sub(rf"\b{method}\(", f"{method}_renamed(", text))
    return folder


def test_doctor_names_the_hooks_that_no_longer_hold(changed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(changed), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    checks: list[dict[str, Any]] = json.loads(done.stdout)
    lost = [check for check in checks if check["ok"] is False and check["topic"][:5] == "hook "]
    assert {check["detail"].partition(":")[0] for check in lost} == {
        f"{owner}.{method}" for method, owner in RENAMED.values()
    }
    assert all("not found" in check["detail"] and check["hint"] for check in lost)


def test_an_engine_serves_and_says_that_nothing_is_recorded(changed: Path, tmp_path: Path) -> None:
    jobs = {
        "on": Job(drafter="eagle31", probe={"EVERY": "1"}, vllm_path=str(changed), sizes=(8,)),
        "off": JOBS["v1 off"],
    }
    done = run_jobs(jobs, tmp_path)
    assert all(len(ids) == MAX_TOKENS for ids in done["off"].tokens())
    assert done["on"].tokens() == done["off"].tokens()
    (said,) = [line for line in done["on"].log.splitlines() if "driftscope: " in line]
    assert "nothing is recorded: " in said
    assert "of this vLLM is organised differently" in said
    assert any(method in said for method, _ in RENAMED.values())
    assert "run `driftscope doctor`" in said
    assert not list((tmp_path / "on").rglob("*draft*")), "nothing was recorded"
