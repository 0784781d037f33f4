"""Alerts fire in time, last as long as the incident and end after the repair, over days."""

from __future__ import annotations

from pathlib import Path

import pytest
from verification.alert_rules.judgement import faults, played
from verification.alert_rules.promtool_play import Firing
from verification.alert_rules.scenarios import FELL, SCENARIOS, Expected, Scenario

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_alerts_last_from_an_incident_to_its_repair(tmp_path: Path, scenario: Scenario) -> None:
    assert list(faults(scenario, played(tmp_path, scenario))) == []


INCIDENT = Scenario(
    name="", hours=100, engines=(), expected=(Expected(alert=FELL, from_h=10, until_h=40),)
)


@pytest.mark.parametrize(
    ("fired", "words"),
    [
        ({}, "did not fire"),
        ({FELL: Firing(begins_h=16, ends_h=40.5, gaps=0)}, "fired at hour 16.00"),
        ({FELL: Firing(begins_h=10.3, ends_h=17, gaps=0)}, "ended at hour 17.00"),
        ({FELL: Firing(begins_h=10.3, ends_h=40.5, gaps=9)}, "did not fire at 9 evaluations"),
        ({FELL: Firing(begins_h=10.3, ends_h=99, gaps=0)}, "ended at hour 99.00"),
    ],
)
def test_a_rule_that_fails_an_incident_is_noticed(fired: dict[str, Firing], words: str) -> None:
    assert any(words in fault for fault in faults(INCIDENT, fired))


def test_an_alert_that_is_not_expected_is_noticed() -> None:
    lasting = {FELL: Firing(begins_h=10.3, ends_h=40.5, gaps=0)}
    other = {"DriftscopeTraceFull": Firing(begins_h=1, ends_h=2, gaps=0)}
    assert list(faults(INCIDENT, lasting)) == []
    assert list(faults(INCIDENT, lasting | other)) == ["DriftscopeTraceFull fired at hour 1.00"]
