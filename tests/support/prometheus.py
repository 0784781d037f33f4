"""The machine's Prometheus tools, and the package's rules as a user would edit them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command import run_process

from driftscope.cli.dashboards import FILES, RULES


def tool(name: str) -> str:
    """Return the path of a program; without it, skip the test and explain how to get it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here: `make prometheus` installs it where it may")
    return path


def promtool(*arguments: str | Path) -> str:
    """Return the output of promtool; fail the test with it when promtool fails."""
    done = run_process(tool("promtool"), *arguments)
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


ENGINES = FILES / "prometheus" / "engines"
KEEP, INTERVAL = "keep_firing_for: ", "interval: "
REFERENCE_HINT = '# 0 * engine:driftscope_rounds:rate{gen_ai_request_model="chat-8b"} + 3.2 or'


def rules_in(file: Path = FILES / RULES) -> list[dict[str, Any]]:
    """Return the rules of a file in their order."""
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def edited_rules(
    file: Path,
    times: Mapping[str, str] | None = None,
    references: Mapping[str, float] | None = None,
) -> Path:
    """Write driftscope's rules to `file`, edited as their first lines describe; return `file`.

    `times` replaces durations: those of the file, or those after KEEP and INTERVAL.
    `references`: acceptance length by model.
    """
    text = (FILES / RULES).read_text()
    for model, length in (references or {}).items():
        line = REFERENCE_HINT.removeprefix("# ").replace("chat-8b", model)
        assert REFERENCE_HINT in text
        text = text.replace(REFERENCE_HINT, line.replace("3.2", f"{length:g}"))
    chosen = times or {}

    def time(match: re.Match[str]) -> str:
        key, duration = match[1] or "", match[2]
        return key + chosen.get(key or duration, duration)

    file.write_text(re.sub(rf"({KEEP}|{INTERVAL})?\b(5m|30m|7d|1h|10m|1d|30s)\b", time, text))
    return file
