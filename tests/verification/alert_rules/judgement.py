"""Whether the alerts did what a scenario expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from support.alert_rules import edited_rules

from verification.alert_rules.promtool_play import EVALUATE_MIN, Firing, play
from verification.alert_rules.scenarios import Expected, Scenario


def played(folder: Path, scenario: Scenario) -> dict[str, Firing]:
    """Return when each alert fired, by the rules with their default durations."""
    rules = edited_rules(folder / "rules.yml", references=scenario.references)
    return play(folder, [rules], scenario.series(), scenario.hours)


def faults(scenario: Scenario, fired: Mapping[str, Firing]) -> Iterator[str]:
    """Yield what differs from what is expected."""
    expected = {each.alert: each for each in scenario.expected}
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
