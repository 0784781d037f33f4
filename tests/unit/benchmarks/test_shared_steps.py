"""Coverage of a mean time's interval where requests share their steps."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bounds import breaches
from benchmarks.shared_steps import row


def test_requests_at_once_are_no_independent_times() -> None:
    found = row(at_once=4, requests=320, trials=100)
    assert found.over_requests < 0.85 < found.covered
    assert found.wider > 1.5


def test_independent_times_lose_little() -> None:
    found = row(at_once=1, requests=160, trials=100)
    assert found.covered >= found.over_requests > 0.85
    assert 1.0 <= found.wider < 1.2


def test_intervals_over_requests_would_be_a_breach() -> None:
    found = row(at_once=4, requests=320, trials=100)
    assert breaches("shared_steps", [found], 400) == []
    (line,) = breaches("shared_steps", [replace(found, covered=found.over_requests)], 400)
    assert line.startswith("shared_steps: 4, 320: coverage 0.")
