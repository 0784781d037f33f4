"""An empty run, and processes that write into it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import Spec, manifest

from driftscope.trace.writer_files import create_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a manifest and nothing else."""
    create_run(tmp_path / "run", manifest(Spec()))
    return tmp_path / "run"


@pytest.fixture
def child() -> Callable[..., subprocess.Popen[str]]:
    """Start child.py with a mode and a run directory in a process of its own."""

    def start(mode: str, run: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", Path(__file__).with_name("child.py"), mode, run],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
