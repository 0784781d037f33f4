"""Acceptance length with a smaller K, against runs that were served with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulate import Truth, simulate

from driftscope.analysis.figures.run_sums import collect
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.summary.computation import lengths_by_k, recut
from driftscope.pipeline import summarise


def _served(sequence: list[bool], k: int) -> Iterator[tuple[int, int]]:
    """Yield the tokens drafted and accepted in each round of K = `k` over a sequence of matches."""
    at = 0
    while at < len(sequence):
        accepted = 0
        while accepted < k and at + accepted < len(sequence) and sequence[at + accepted]:
            accepted += 1
        yield k, accepted
        at += accepted + 1  # the token that the target adds: the correction, or one more


def _runs(rounds: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    matches, missed = [0], [0]
    for drafted, accepted in rounds:
        matches[-1] += accepted + (accepted == drafted)
        if accepted < drafted:
            missed[-1] = 1
            matches.append(0)
            missed.append(0)
    return matches, missed


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(1, 8), st.integers(1, 8))
def test_rounds_of_a_shorter_chain_are_counted_exactly(
    sequence: list[bool], k: int, shorter: int
) -> None:
    """A sequence in which the target's own token is a match wherever a chain was accepted whole."""
    k = max(k, shorter)
    wide = list(_served(sequence, k))
    known = [match for _, accepted in wide for match in [True] * accepted + [accepted == k]]
    matches, missed = _runs(wide)
    columns = [np.array(c) for c in (np.zeros(len(matches), int), matches, missed)]
    found = recut(*columns, np.ones(len(matches), int), k=k)[shorter - 1]
    rounds = list(_served(known, shorter))
    assert found.mean_length == pytest.approx(len(known) / len(rounds))


def test_with_the_k_that_ran_it_is_the_length_that_was_served(tmp_path: Path) -> None:
    run = collect(open_run(simulate(tmp_path / "run", Truth(k=5, requests=40, rounds=25))))
    last = lengths_by_k(run).value[-1]
    served = summarise(run, "run").acceptance
    assert last.k == 5
    assert last.mean_length == pytest.approx(served.mean_length)
    assert last.mean_length_interval == served.mean_length_interval


def test_a_run_of_several_k_has_none(tmp_path: Path) -> None:
    truth = Truth(k=5, requests=40, rounds=25, k_by_batch=((2, 5), (8, 2)))
    assert lengths_by_k(collect(open_run(simulate(tmp_path / "run", truth)))).value == ()
