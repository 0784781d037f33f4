"""`driftscope doctor --engine sglang`, run beside a real SGLang."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.sglang_process.job import ENVIRONMENT, ROOT, VERSION, Job, environment, installed

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not installed(), reason="`make sglang` builds SGLang's environment"),
    pytest.mark.nightly,
]
WORKER = "sglang.srt.speculative.eagle_worker_v2"
RUN = "import sys; from driftscope.cli.app import run; run()"


def doctor(tmp_path: Path, before: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Return exit status and checks of a doctor that runs after the code `before`."""
    ended = subprocess.run(
        [ENVIRONMENT / "bin/python", "-c", before + RUN, "doctor", "--engine", "sglang", "--json"],
        env=environment(Job(drafter=""), tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.returncode, json.loads(ended.stdout)


def test_a_tested_version_is_ready(tmp_path: Path) -> None:
    status, checks = doctor(tmp_path)
    assert status == 0
    assert checks[0]["ok"] and f"SGLang {VERSION}, tested" in checks[0]["detail"]


def test_a_method_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = f"import {WORKER} as m; del m.EagleDraftWorker._draft_extend_for_decode; "
    status, checks = doctor(tmp_path, gone)
    assert status == 1
    (broken,) = (check for check in checks[1:] if check["ok"] is False)
    assert "EagleDraftWorker._draft_extend_for_decode: not found" in broken["detail"]
