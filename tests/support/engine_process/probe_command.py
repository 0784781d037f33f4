"""`driftscope probe`, run as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def run_probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command, whatever its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "driftscope", "probe", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def probe_answer(*arguments: str) -> dict[str, Any]:
    """Return the JSON document of the command, which must succeed."""
    done = run_probe(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
