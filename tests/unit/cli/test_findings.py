"""`driftscope findings`: the list fits a screen, and one finding is explained."""

from __future__ import annotations

import json

import pytest
from support.command import run_command

from driftscope.findings.catalogue import CATALOGUE, REPLAYS


def test_the_list_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_command("findings").stdout.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == [*CATALOGUE, *REPLAYS]
    assert set(json.loads(run_command("findings", "--json").stdout)) == {*CATALOGUE, *REPLAYS}
    assert len(lines) <= 42
    assert max(map(len, lines)) <= 80


def test_one_finding_is_explained_with_its_thresholds_and_their_sources() -> None:
    text = " ".join(run_command("findings", "sink_lost").stdout.split())
    entry = CATALOGUE["sink_lost"]
    assert entry.meaning in text
    assert entry.need.words in text
    for threshold in entry.thresholds:
        assert f"Threshold {threshold.value:g}: {threshold.means}" in text
        assert threshold.source in text
    assert list(json.loads(run_command("findings", "sink_lost", "--json").stdout)) == ["sink_lost"]


def test_a_name_that_is_no_finding_is_answered_with_the_nearest() -> None:
    done = run_command("findings", "sink_loss")
    assert done.returncode == 2
    assert "did you mean sink_lost?" in done.stderr
