"""Play series through the rules with promtool, and read when each alert fired."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.command import run_process
from support.prometheus import edited_rules, tool

from verification.alert_rules.scenarios import SCRAPE_MIN, Expected, Scenario

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
    done = run_process(tool("promtool"), "test", "rules", file, timeout_s=_PLAY_S)
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


def played(folder: Path, scenario: Scenario) -> dict[str, Firing]:
    """Return when each alert fired, by the rules with their default durations."""
    rules = edited_rules(folder / "rules.yml", references=scenario.references)
    return play(folder, [rules], scenario.series(), scenario.hours)


def faults(scenario: Scenario, fired: Mapping[str, Firing]) -> Iterator[str]:
    """Yield what differs from what is expected."""
    expected = {item.alert: item for item in scenario.expected}
    for name in fired.keys() - expected.keys():
        yield f"{name} fired at hour {fired[name].begins_h:.2f}"
    for name, one in expected.items():
        if name in fired:
            yield from (f"{name} {words}" for words in _differs(one, fired[name], scenario.hours))
        else:
            yield f"{name} did not fire"


def _differs(one: Expected, firing: Firing, hours: float) -> Iterator[str]:
    step_h = EVALUATE_MIN / 60
    if not one.from_h <= firing.begins_h <= one.from_h + one.within_h:
        yield f"fired at hour {firing.begins_h:.2f}"
    if bool(firing.gaps) != one.gaps:
        yield f"did not fire at {firing.gaps} evaluations between"
    if one.until_h is None:
        if firing.ends_h < hours - step_h:
            yield f"ended at hour {firing.ends_h:.2f} of an incident that lasts"
    elif not one.until_h <= firing.ends_h <= one.until_h + one.ends_within_h:
        yield f"ended at hour {firing.ends_h:.2f}"
