"""Coverage of a mean time's interval where requests share their steps."""

from __future__ import annotations

from benchmarks.shared_steps import row


def test_requests_at_once_are_no_independent_times() -> None:
    over_requests, over_time, wider = row(at_once=4, requests=320, trials=100)
    assert over_requests < 0.85 < over_time
    assert wider > 1.5


def test_independent_times_lose_little() -> None:
    over_requests, over_time, wider = row(at_once=1, requests=160, trials=100)
    assert over_time >= over_requests > 0.85
    assert 1.0 <= wider < 1.2
