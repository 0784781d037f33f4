"""Exit code and output of `driftscope analyze` on a recorded run, started as a user starts it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ANALYZE_TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True)
class Analyzed:
    """Exit code and output of `driftscope analyze RUN --json -`."""

    code: int
    stdout: str
    stderr: str


def analyzed(run: Path) -> Analyzed:
    """Analyse a run in a separate process."""
    with tempfile.TemporaryDirectory(prefix="driftscope-analyzed-") as folder:
        report = Path(folder) / "report.html"
        done = subprocess.run(
            [sys.executable, "-m", "driftscope", "analyze", str(run), "--json", "-", "-o", report],
            capture_output=True,
            text=True,
            timeout=ANALYZE_TIMEOUT_S,
            check=False,
        )
    return Analyzed(code=done.returncode, stdout=done.stdout, stderr=done.stderr)
