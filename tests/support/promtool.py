"""Use the machine's Prometheus, promtool and Alertmanager from Debian."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def tool(name: str) -> str:
    """Return the path of a program; without it, skip the test and explain how to get it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here: `make prometheus` installs it where it may")
    return path


def promtool(*arguments: str | Path) -> str:
    """Return the output of promtool; fail the test with it when promtool fails."""
    command = [tool("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_rules_with(
    folder: Path, rules: list[Path], series: list[dict[str, str]], expected: list[dict[str, Any]]
) -> None:
    """Evaluate `rules` over `series` with promtool and compare the values of expressions."""
    test = {
        "rule_files": [str(path) for path in rules],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": expected}],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(test))  # JSON is YAML
    promtool("test", "rules", file)
