"""States take turns within one engine, and are held against the steps around them."""

from __future__ import annotations

import random

import pytest

from benchmarks.turns import (
    AGAIN,
    BUDGET,
    COUNTED,
    EVERY,
    STATES,
    STOPPED,
    UNCOUNTED,
    Drawn,
    Round,
    Turns,
    losses,
    ratios,
    share,
)

STEP_S, LOST_S, EACH = 0.02, 0.003, 40
"""A flush falls into each fortieth step."""


def _serve(steps: int, *, noise: float, seed: int = 1) -> tuple[list[tuple[float, float]], ...]:
    """Steps right after each other, and flushes of 2 ms in the middle of some."""
    generator, now = random.Random(seed), 100.0
    served, flushes = [], []
    for number in range(steps):
        took = STEP_S + noise * generator.expovariate(1.0)
        took *= 1 + number / steps  # the machine gets slower
        if number % EACH == EACH // 2:
            flushes.append((now + 0.01, now + 0.012))
            took += LOST_S
        served.append((now, now + took))
        now += took
    return served, flushes


def test_what_is_lost_is_found_beside_noise_and_a_drift() -> None:
    steps, flushes = _serve(20_000, noise=0.002)
    found = losses(steps, flushes)
    assert len(found["hit"]) == len(flushes)
    assert found["seconds"] == pytest.approx(steps[-1][1] - steps[0][0])
    value, off = share(found)
    assert value == pytest.approx(len(flushes) * LOST_S / found["seconds"], rel=0.1)
    assert 0 < off < 0.2 * value


def test_its_interval_holds_what_is_lost_nineteen_times_in_twenty() -> None:
    inside = 0
    for seed in range(200):
        steps, flushes = _serve(1200, noise=0.002, seed=seed)
        value, off = share(losses(steps, flushes))
        truth = len(flushes) * LOST_S / (steps[-1][1] - steps[0][0])
        inside += abs(value - truth) <= off
    assert inside >= 180


def _order(turns: Turns, rounds: int) -> list[str]:
    """Whose turn it was, as steps went by."""
    found = []
    while len(turns.rounds) < rounds:
        found.append(turns.state)
        while not turns.step(1.0, alike=True):
            pass
    return found


def test_each_round_has_every_state_and_begins_with_another() -> None:
    order = _order(Turns(), len(STATES))
    rounds = [order[i : i + len(STATES)] for i in range(0, len(order), len(STATES))]
    assert all(set(each) == set(STATES) for each in rounds)
    assert {each[0] for each in rounds} == set(STATES)


def test_the_first_steps_of_a_turn_and_those_of_another_sort_do_not_count() -> None:
    turns = Turns()
    for _ in STATES:
        for _ in range(UNCOUNTED):
            assert not turns.step(99.0, alike=True)
        assert not turns.step(50.0, alike=False)
        ended = [turns.step(float(i), alike=True) for i in range(COUNTED)]
        assert ended == [False] * (COUNTED - 1) + [True]
    (found,) = turns.rounds
    assert set(found.values()) == {((COUNTED - 1) / 2, (COUNTED - 1) / 2)}


def test_rare_recorded_steps_are_counted_and_add_what_they_take_above_the_others() -> None:
    turns = Turns()
    for _ in STATES:
        rest = 2 if turns.state == BUDGET else 0
        for _ in range(UNCOUNTED):
            turns.step(9.0, alike=True, recorded=rest > 0)
        while not turns.step(1.5 if rest else 1.0, alike=True, recorded=rest > 0):
            rest = max(0, rest - 1)
    drawn = turns.drawn[BUDGET]
    assert (drawn.steps, drawn.recorded) == (COUNTED + UNCOUNTED, UNCOUNTED + 2)
    assert drawn.above == [0.5, 0.5]
    assert drawn.adds(2.0) == 0.5 / 2.0 * drawn.recorded / drawn.steps
    assert turns.drawn[STOPPED] == Drawn(steps=COUNTED + UNCOUNTED)
    assert turns.drawn[STOPPED].adds(2.0) == 0.0


def _round(unit: float) -> Round:
    return dict.fromkeys(STATES, (unit, unit))


def test_a_ratio_is_to_the_steps_of_its_own_round() -> None:
    generator = random.Random(3)
    rounds = [
        {**_round(unit), STOPPED: (1.02 * unit, unit), EVERY: (1.1 * unit, unit)}
        for unit in (generator.uniform(0.5, 2.0) for _ in range(40))
    ]
    for state, wanted in ((STOPPED, 1.02), (EVERY, 1.1), (AGAIN, 1.0)):
        assert ratios(rounds, state) == pytest.approx([wanted] * 40), "whatever the machine does"
