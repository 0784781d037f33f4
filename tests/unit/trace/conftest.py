"""An empty run, and ways to fill, wait for and read it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import Spec, manifest

from driftscope.trace.manifest import MANIFEST

CHILD = Path(__file__).parent / "child.py"
PATIENCE_S = 20.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a manifest and nothing else."""
    path = tmp_path / "run"
    path.mkdir()
    (path / MANIFEST).write_text(manifest(Spec()).to_json(), encoding="utf-8")
    return path


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something to become true."""

    def wait(happened: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not happened():
            assert time.monotonic() - begin < PATIENCE_S, "did not happen"
            time.sleep(0.005)

    return wait


@pytest.fixture
def child() -> Callable[..., subprocess.Popen[str]]:
    """Start child.py with a mode and a run directory in a process of its own."""

    def start(mode: str, run: Path) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(CHILD), mode, str(run)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
