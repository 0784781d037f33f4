"""Which recorded steps carry masses by distance."""

from __future__ import annotations

import pytest

from driftscope_probes.sampler import CHOICES, distance_choices


@pytest.mark.parametrize("every", [1, 2, 8, 50])
def test_one_step_in_so_many_carries_them(every: int) -> None:
    chosen = distance_choices(every)
    assert len(chosen) == CHOICES
    assert sum(chosen) == pytest.approx(CHOICES / every, rel=0.2)


@pytest.mark.parametrize("interval", [2, 8, 16, 64])
def test_steps_recorded_at_an_interval_are_chosen_as_often(interval: int) -> None:
    chosen = distance_choices(8)
    hits = [chosen[number % CHOICES] for number in range(0, interval * 4000, interval)]
    assert sum(hits) == pytest.approx(4000 / 8, rel=0.2)


def test_none_is_chosen_if_none_is_wanted() -> None:
    assert not any(distance_choices(0))


def test_every_rank_chooses_the_same_steps() -> None:
    assert distance_choices(8) == distance_choices(8)
