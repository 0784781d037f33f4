"""Shadow rounds have a fixed rate, or as many as a part of the budget pays for."""

from __future__ import annotations

import itertools

import pytest

from driftscope_probes.shadow.shadow_rate import (
    BUDGET_SHARE,
    LEAST_GAP,
    RECORDED_PER_SHADOW,
    ShadowRate,
)
from driftscope_probes.steps.sampler import AIM, EVERY_STEPS, Sampler

STEP_S = 0.010


def _governed(budget: float = 0.01) -> Sampler:
    sampler = Sampler(every=None, budget=budget)
    for _ in range(EVERY_STEPS):
        sampler.note([STEP_S], [0.0], recorded=False)
    assert sampler.known_step_s == STEP_S
    return sampler


def _taken(rate: ShadowRate, steps: int, cost_s: float = 0.005) -> list[int]:
    taken = []
    for step in range(1, steps + 1):
        if rate.take():
            rate.spent(cost_s)
            taken.append(step)
    return taken


def test_a_fixed_rate() -> None:
    assert _taken(ShadowRate(_governed(), every=5), 20) == [5, 10, 15, 20]
    assert _taken(ShadowRate(_governed(), every=1), 3) == [1, 2, 3]


def test_a_fixed_rate_of_recorded_steps_makes_shadow_rounds_rarer() -> None:
    gap = 3 * RECORDED_PER_SHADOW
    assert _taken(ShadowRate(Sampler(every=3), None), 3 * gap) == [gap, 2 * gap, 3 * gap]


@pytest.mark.parametrize("cost_s", [0.001, 0.02])
def test_the_budget_pays_for_each_round(cost_s: float) -> None:
    sampler, steps = _governed(), 200_000
    taken = _taken(ShadowRate(sampler, None), steps, cost_s)
    share = len(taken) * cost_s / (steps * STEP_S)
    assert share <= 1.1 * BUDGET_SHARE * AIM * sampler.budget
    gaps = [b - a for a, b in itertools.pairwise([0, *taken])]
    assert min(gaps) >= LEAST_GAP
    if cost_s / (BUDGET_SHARE * AIM * sampler.budget * STEP_S) > 2 * LEAST_GAP:
        assert share >= 0.9 * BUDGET_SHARE * AIM * sampler.budget
        assert len(set(gaps)) > len(gaps) // 2, "no rhythm"


def test_the_cost_is_part_of_the_expected_overhead() -> None:
    sampler = _governed()
    before = sampler.overhead
    rate = ShadowRate(sampler, every=10)
    _taken(rate, 10, cost_s=0.002)
    assert sampler.overhead == pytest.approx(before + 0.002 / (10 * STEP_S))


def test_a_stopped_recording_has_no_shadow_rounds() -> None:
    sampler = _governed()
    rate = ShadowRate(sampler, every=2)
    sampler.stop()
    assert _taken(rate, 10) == []
    sampler.start()
    assert _taken(rate, 4) == [1, 3]
