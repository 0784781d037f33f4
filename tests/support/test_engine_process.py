"""The process of a test's engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = Path(__file__).parent / "engine_process" / "engine_main.py"


@pytest.mark.process
def test_it_starts_where_driftscope_itself_is_broken(tmp_path: Path) -> None:
    """One start of `make starts` breaks it on purpose; vLLM must be what finds that out."""
    (tmp_path / "driftscope.py").write_text("raise SyntaxError('broken for a test')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    code = f"import runpy; runpy.run_path({str(MAIN)!r}, run_name='engine_main')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
