"""Choice of K from times with known ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from driftscope.analysis.cost.choice import Choice, choose
from driftscope.analysis.cost.model import Span
from driftscope.analysis.cost.predict import Times

SURE = 0.01


def _times(values: Sequence[float], ran: int, open_by: dict[int, float]) -> Times:
    """Times known to SURE, but to a larger share for the K of `open_by`."""
    spans = [
        Span(value=v, low=v / (1 + open_by.get(k, SURE)), high=v * (1 + open_by.get(k, SURE)))
        for k, v in enumerate(values)
    ]
    return Times(by_k=tuple(spans), ran=spans[ran])


def _chosen(
    values: Sequence[float],
    measured: set[int],
    *,
    ran: int,
    growth: float = 0.01,
    unsure: float = 0.6,
) -> Choice:
    times = _times(values, ran, {k: unsure for k in range(len(values)) if k not in measured})
    return choose(times, times, measured, ran=ran, growth=growth)


def test_one_run_sends_to_the_guessed_best() -> None:
    found = _chosen([9.0, 6.0, 5.0, 5.5, 7.0], {4}, ran=4)
    assert found.next is not None
    assert found.next.k == 2
    assert found.next.guess == pytest.approx(7.0 / 5.0 - 1)
    assert found.next.most == pytest.approx(7.0 * 1.01 / (5.0 / 1.6) - 1)


def test_the_better_unmeasured_neighbour_of_the_best_comes_next() -> None:
    found = _chosen([9.0, 6.0, 5.0, 5.5, 7.0], {4, 2}, ran=4)
    assert (found.k, found.next and found.next.k) == (2, 3)


def test_it_is_settled_when_both_neighbours_are_slower() -> None:
    found = _chosen([9.0, 6.0, 5.0, 5.5, 7.0], {4, 1, 2, 3}, ran=4)
    assert (found.k, found.measured, found.next) == (2, True, None)
    assert found.gain is not None and found.gain.interval is not None
    assert found.gain.interval.low == pytest.approx(7.0 / 5.0 / 1.01**2 - 1)


def test_a_k_that_surely_loses_at_most_5_percent_is_settled_without_neighbours() -> None:
    found = _chosen([9.0, 6.0, 5.9, 5.0], {3}, ran=3, unsure=0.04)
    assert found.regret is not None and found.regret <= 0.05
    assert (found.k, found.next) == (3, None)


def test_a_larger_k_gets_a_bound_and_no_guess() -> None:
    found = _chosen([9.0, 6.0, 5.0], {0, 1, 2}, ran=2, growth=0.2)
    assert found.next is not None
    assert (found.next.k, found.next.guess, found.next.most) == (3, None, 0.2)


def test_a_larger_k_that_cannot_gain_5_percent_is_not_measured() -> None:
    assert _chosen([9.0, 6.0, 5.0], {0, 1, 2}, ran=2, growth=0.04).next is None


def test_nothing_measured_and_nothing_bounded_chooses_nothing() -> None:
    found = _chosen([9.0, 6.0, 5.0], set(), ran=2)
    assert (found.k, found.gain, found.next) == (None, None, None)
