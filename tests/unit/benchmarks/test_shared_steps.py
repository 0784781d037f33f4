"""Coverage of a mean time's interval where requests share their steps."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.calibration.estimates import SHARED_STEPS, shared_steps_at


def test_requests_at_once_are_no_independent_times() -> None:
    found = shared_steps_at(at_once=4, requests=320, trials=100)
    assert found.over_requests < 0.85 < found.covered
    assert found.wider > 1.5


def test_independent_times_lose_little() -> None:
    found = shared_steps_at(at_once=1, requests=160, trials=100)
    assert found.covered >= found.over_requests > 0.85
    assert 1.0 <= found.wider < 1.2


def test_intervals_over_requests_would_be_a_breach() -> None:
    found = shared_steps_at(at_once=4, requests=320, trials=100)
    assert SHARED_STEPS.breaches([found], 400) == []
    (line,) = SHARED_STEPS.breaches([replace(found, covered=found.over_requests)], 400)
    assert line.startswith("shared_steps: 4, 320: coverage 0.")
