"""Which requests of a recording are used, and how long nearly all requests take."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration.changes import (
    CERTAIN,
    SERVERS,
    changed,
    choices,
    recording,
    true_length,
)
from driftscope.analysis.statistics.lifetimes import (
    Lifetimes,
    duration_quantile,
    selection_of,
)

TRIALS = 60
MOST_CALLS = 8
"""More than 8 of TRIALS at 5 % are called in 0.5 % of cases; the seeds are fixed."""


def _lives(start: list[float], last: list[float], ended: list[bool], end_s: float) -> Lifetimes:
    n = len(start)
    return Lifetimes(
        start_s=np.array(start),
        last_s=np.array(last),
        end_s=np.full(n, end_s),
        ended=np.array(ended),
        rounds=np.full(n, 10),
    )


def test_without_running_requests_the_quantile_is_that_of_the_durations() -> None:
    seen = np.arange(1.0, 101.0)
    assert duration_quantile(seen, np.ones(100, dtype=bool), 0.95) == 95.0


def test_the_product_limit_estimate_by_hand() -> None:
    """One of 4 requests ends after 1 s, one is last seen after 2 s, two end after 3 and 4 s:
    S(1) = 3/4, S(3) = 3/4 x 1/2, S(4) = 0."""
    seen, ended = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True])
    assert [duration_quantile(seen, ended, share) for share in (0.25, 0.26, 0.62, 0.63)] == [
        1.0,
        3.0,
        3.0,
        4.0,
    ]


def test_a_quantile_beyond_every_end_is_not_known() -> None:
    seen = np.array([1.0, 5.0])
    assert duration_quantile(seen, np.array([True, False]), 0.95) is None
    assert duration_quantile(seen, np.array([False, False]), 0.5) is None


def test_a_recording_that_ended_after_its_requests_is_used_whole() -> None:
    chosen = selection_of(_lives([0, 9], [5, 10], [True, True], 10.0))
    assert chosen.kept.all()
    assert chosen.enough
    assert chosen.duration_s is None


def test_requests_are_chosen_by_when_they_began() -> None:
    """Requests take 2 s. The last one runs; of those that began before, all are used, also the
    one that takes longer and runs still."""
    start = [float(n) for n in range(40)]
    ended = [n not in (7, 39) for n in range(40)]
    last = [begin + 2.0 if done else 39.5 for begin, done in zip(start, ended, strict=True)]
    chosen = selection_of(_lives(start, last, ended, 39.5))
    assert chosen.duration_s == 2.0
    assert chosen.enough
    assert np.flatnonzero(~chosen.kept).tolist() == [38, 39]
    assert chosen.kept[7]


def test_too_little_left_is_told_and_everything_kept() -> None:
    chosen = selection_of(_lives([0, 1, 2, 3], [1, 4, 4, 4], [True, False, False, False], 4.0))
    assert not chosen.enough
    assert chosen.kept.all()


def test_a_cut_leaves_out_what_began_before_it() -> None:
    lives = _lives([0, 4, 6, 8], [6, 7, 9, 10], [True] * 4, 10.0)
    chosen = selection_of(lives, 5.0)
    assert chosen.early.tolist() == [True, True, False, False]
    assert chosen.kept.tolist() == [False, False, True, True]


@pytest.mark.parametrize("name", ["both", "acceptance rises along an answer"])
@pytest.mark.slow
def test_a_stationary_server_read_while_it_runs(name: str) -> None:
    """All rounds of the same recordings would be called a change, and are biased."""
    drawn = [recording(SERVERS[name], 700 + seed) for seed in range(TRIALS)]
    called = dict.fromkeys(("cohort", "all"), 0)
    lengths: dict[str, list[float]] = {choice: [] for choice in called}
    for each in drawn:
        for choice in called:
            mine = choices(each)[choice]
            called[choice] += changed(each, mine)
            lengths[choice].append(each.tokens[mine].sum() / each.lives.rounds[mine].sum())
    true = true_length(SERVERS[name])
    bias = {choice: np.mean(each) / true - 1 for choice, each in lengths.items()}
    assert called["cohort"] <= MOST_CALLS < called["all"]
    assert abs(bias["cohort"]) <= CERTAIN < abs(bias["all"])
