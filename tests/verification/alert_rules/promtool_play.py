"""Play series through the rules with promtool, and read when each alert fired."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.promtool import tool

from verification.alert_rules.fleet import SCRAPE_MIN

EVALUATE_MIN = 4
"""Minutes between two evaluations; production has 30 s. A value is visible for 5 minutes."""
_FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
_PLAY_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """When one alert fired, over all its labels."""

    begins_h: float
    ends_h: float
    """Time of the last evaluation at which it fired, in hours."""
    gaps: int
    """Evaluations between the two at which it did not fire."""


def play(
    folder: Path, rules: Sequence[Path], series: Sequence[dict[str, str]], hours: float
) -> dict[str, Firing]:
    """Return by name the alerts that fired."""
    window = f"[{int(hours) + 1}h:{EVALUATE_MIN}m]"
    asked = [
        f"min_over_time(timestamp({_FIRING}){window}) / 60",
        f"max_over_time(timestamp({_FIRING}){window}) / 60",
        f"count_over_time({_FIRING}{window})",
    ]
    # promtool compares and prints what it found only where that differs: nothing is what we expect.
    test = {
        "rule_files": [str(path) for path in rules],
        "evaluation_interval": f"{EVALUATE_MIN}m",
        "tests": [
            {
                "interval": f"{SCRAPE_MIN}m",
                "input_series": list(series),
                "promql_expr_test": [
                    {"expr": expr, "eval_time": f"{int(hours * 60)}m", "exp_samples": []}
                    for expr in asked
                ],
            }
        ],
    }
    file = folder / "play.yml"
    file.write_text(json.dumps(test))  # JSON is YAML
    done = subprocess.run(
        [tool("promtool"), "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PLAY_S,
    )
    found = [_samples(line) for line in re.findall(r"got: (.*)", done.stdout + done.stderr)]
    if not found:
        assert done.returncode == 0, done.stdout + done.stderr
        return {}
    first, last, count = found
    return {
        name: Firing(
            begins_h=first[name] / 60,
            ends_h=last[name] / 60,
            gaps=round((last[name] - first[name]) / EVALUATE_MIN) + 1 - round(count[name]),
        )
        for name in sorted(first)
    }


def _samples(line: str) -> dict[str, float]:
    pairs = re.findall(r'alertname="(\w+)"[^}]*\} ([0-9.E+-]+)', line)
    return {name: float(value) for name, value in pairs}
