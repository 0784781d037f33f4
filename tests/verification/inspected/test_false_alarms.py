"""The command fails above its bound, and its sentence says how far the drafters reach."""

from __future__ import annotations

import pytest

from verification.inspected.false_alarms import SEEDS, verdict
from verification.inspected.table import Row


def _rows(alarms: int) -> list[Row]:
    return [
        Row(
            name="noise",
            of="eagle3",
            ids=("repaired_by.norm_output",) if number < alarms else (),
            right=number >= alarms,
            trial=None,
            files_s=0.0,
            trial_s=0.0,
        )
        for number in range(2 * SEEDS)
    ]


@pytest.mark.parametrize(("alarms", "holds"), [(0, True), (3, True), (4, False)])
def test_more_than_one_in_twenty_fail(alarms: int, holds: bool) -> None:
    assert verdict(_rows(alarms))[1] is holds


def test_no_alarm_of_sixty_shows_less_than_five_per_cent() -> None:
    assert "0 of 60 healthy drafters" in verdict(_rows(0))[0]
    assert "at most 4.9% would (95 % interval)" in verdict(_rows(0))[0]
