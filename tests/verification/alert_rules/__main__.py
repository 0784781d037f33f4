"""Print what the alerts do in each scenario, as a table; exit with 1 if one does otherwise.

Run by `make alert-rules`.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verification.alert_rules.play import Firing, faults, played
from verification.alert_rules.scenarios import SCENARIOS, UNKNOWN, Scenario

WORKERS = 2


def main() -> int:
    sys.stdout.write(
        "| what happens | alert | fires after | ends | as it must |\n|---|---|---|---|---|\n"
    )
    with ThreadPoolExecutor(WORKERS) as pool:
        wrong = 0
        for rows, bad in pool.map(_rows, SCENARIOS):
            sys.stdout.write(rows)
            sys.stdout.flush()
            wrong += bad
    return int(wrong > 0)


def _rows(scenario: Scenario) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory() as folder:
        fired = played(Path(folder), scenario)
    found = list(faults(scenario, fired))
    outcome = "; ".join(found) or "yes"
    # A new model is reported in every scenario, for its first hour.
    shown = {name: firing for name, firing in fired.items() if name != UNKNOWN}
    rows = [_row(scenario, name, firing, outcome) for name, firing in shown.items()]
    return "".join(rows or [f"| {scenario.name} | none | | | {outcome} |\n"]), bool(found)


def _row(scenario: Scenario, name: str, firing: Firing, outcome: str) -> str:
    expected = {item.alert: item for item in scenario.expected}.get(name)
    began = firing.begins_h - (expected.from_h if expected else 0)
    after = f"{began * 60:.0f} min" if began < 2 else f"{began:.1f} h"
    if expected is None or expected.until_h is None:
        ends = "with the scenario" if firing.ends_h >= scenario.hours - 0.1 else "early"
    else:
        what = "the repair" if expected.until_h > expected.from_h else "it"
        ends = f"{(firing.ends_h - expected.until_h) * 60:.0f} min after {what}"
    if firing.gaps:
        ends += f", with a pause of {firing.gaps / 15:.0f} h"
    return f"| {scenario.name} | {name} | {after} | {ends} | {outcome} |\n"


if __name__ == "__main__":
    sys.exit(main())
