"""The cost of a flush is measured by comparing the steps it falls into with their neighbours."""

from __future__ import annotations

import random

import pytest

from benchmarks.flushes import losses, share

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


def test_flushes_that_take_nothing_read_as_nothing() -> None:
    steps, _ = _serve(4000, noise=0.002)
    plain = [(begin, end) for i, (begin, end) in enumerate(steps) if i % EACH != EACH // 2]
    value, off = share(losses(plain, [(begin + 0.001, begin + 0.002) for begin, _ in plain[::37]]))
    assert abs(value) <= 2 * off


def test_a_flush_between_two_steps_or_of_no_length_falls_into_none() -> None:
    steps = [(float(i), i + 0.5) for i in range(20)]
    assert losses(steps, [(3.6, 3.9), (7.2, 7.20005)])["hit"] == []
    assert len(losses(steps, [(3.4, 4.1)])["hit"]) == 2
    assert share(losses(steps, [])) == (0.0, 0.0)
