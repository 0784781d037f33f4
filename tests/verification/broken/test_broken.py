"""Findings about every broken drafter that the tests can build, on real runs."""

from __future__ import annotations

import pytest

from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK
from driftscope.findings.finding import Severity, Trust
from verification.broken.faults import EAGLE31, FAULTS, HEALTHY
from verification.broken.table import Row, rows, show

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

DEAD = ("d2t shifted", "d2t zero", "head permuted", "other target")
LIKELIEST = {
    "norm_output off in the config": "norm flags",
    "norm_output not applied": "norm flags",
    "norm_output on in the config": "norm flags",
    "fc_norm missing": "norm flags",
    "captured layers one too low": "captured target layers are",
    "captured layers one too high": "captured target layers are",
    "captured layers one too high, eagle3": "captured target layers are",
    "d2t shifted": "d2t",
    "d2t zero": "d2t",
    "head permuted": "d2t",
    "own embedding": "the embedding",
    "other target": "another target",
}
"""Words of the most likely cause when the healthy run is the baseline."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    found = rows(tmp_path_factory.mktemp("broken"))
    show(found)
    return {row.name: row for row in found}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_drafter_asks_for_nothing(table: dict[str, Row], name: str) -> None:
    row = table[name]
    assert not row.asks
    assert row.exit_code == EXIT_OK
    if name == EAGLE31:
        healthy = row.found("healthy")
        assert healthy is not None and healthy.severity is Severity.GOOD


@pytest.mark.parametrize("name", FAULTS)
def test_the_gate_fails_for_every_broken_drafter(table: dict[str, Row], name: str) -> None:
    row = table[name]
    other_target = name == "other target"  # then the baseline is of other weights: no gate decides
    assert row.exit_code == (EXIT_NO_DATA if other_target else EXIT_GATE_FAILED)
    parted = row.found("runs_part", beside=True)
    assert other_target or (parted is not None and parted.confidence is Trust.HIGH)
    assert row.found("healthy", beside=True) is None
    assert row.found("runs_alike", beside=True) is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_dead_drafter_is_called_dead(table: dict[str, Row], name: str) -> None:
    row = table[name]
    assert row.dead is (name in DEAD)
    dead = row.found("nothing_accepted")
    assert (dead is not None) is row.dead
    if dead is not None:
        assert dead.confidence is Trust.HIGH
        assert row.alone[0] is dead
        assert "speculation costs time and gives nothing" in row.verdict
        assert dead.advice.startswith("Turn speculation off now")


@pytest.mark.parametrize("name", LIKELIEST)
def test_the_true_cause_stands_first(table: dict[str, Row], name: str) -> None:
    row = table[name]
    found = row.found("nothing_accepted", beside=True) or row.found("runs_part", beside=True)
    assert found is not None
    assert LIKELIEST[name] in found.causes[0].cause
    assert found.causes[0].supported
    assert LIKELIEST[name] not in " ".join(cause.cause for cause in found.ruled_out)


def test_a_flag_that_is_not_applied_needs_no_baseline(table: dict[str, Row]) -> None:
    falls = table["norm_output not applied"].found("acceptance_falls")
    assert falls is not None
    assert "does not apply the flag" in falls.causes[0].observed
    assert table["norm_output not applied"].run.manifest.norm_flags["norm_output"]
