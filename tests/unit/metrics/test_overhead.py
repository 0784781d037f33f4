"""The cost of the probe is one figure wherever it is shown."""

from __future__ import annotations

import pytest

from driftscope.metrics.overhead import all_in, cost_of


def test_hooks_and_writers_of_worker_and_engine_core_over_the_steps() -> None:
    costs = [cost_of("worker0-1", 0.02, 0.01, 1.0), cost_of("engine0-2", 0.003, 0.002)]
    assert all_in(costs) == pytest.approx(0.035)


def test_of_ranks_that_run_the_same_steps_the_slowest_counts() -> None:
    ranks = [cost_of("worker0-1", 0.02, 0.01, 1.0), cost_of("worker1-2", 0.05, 0.0, 0.9)]
    assert all_in(ranks) == pytest.approx(0.06)


def test_replicas_add_up() -> None:
    replicas = [cost_of("worker0-1", 0.01, 0.0, 1.0), cost_of("worker0.dp1-2", 0.03, 0.0, 1.0)]
    assert all_in(replicas) == pytest.approx(0.02)


def test_without_steps_there_is_no_figure() -> None:
    assert all_in([]) is None
    assert all_in([cost_of("worker0-1", 1.0, 0.0)]) is None
