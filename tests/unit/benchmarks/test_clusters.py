"""Worlds in which prompts repeat, with few trials: `make calibration` runs them with many."""

from __future__ import annotations

import pytest

from benchmarks.calibration.estimates import CLUSTERS, WORLDS, clustered, drawn, mean_length
from driftscope.analysis.statistics.ratio import intervals

TRIALS = 40
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["16 prompts x 4", "8 prompts x 8", "20 prompts x 15 sessions"])
def test_intervals_over_clusters_hold_the_truth_and_equal_runs_do_not_differ(name: str) -> None:
    row = clustered(name, WORLDS[name], TRIALS)
    assert not CLUSTERS.breaches([row], TRIALS)
    assert row.by_request < 0.8, "requests of one prompt are not independent"
    assert row.design_effect > 2


def test_four_prompts_have_no_interval_however_often_they_are_asked() -> None:
    assert intervals(drawn(WORLDS["4 prompts x 10"], 1).rounds.length_ratio()) == (None,)


def test_the_truth_is_that_of_a_very_large_run() -> None:
    world = WORLDS["200 prompts x 1"]
    lengths = [drawn(world, seed).rounds.length_ratio().value[0] for seed in range(100)]
    assert sum(lengths) / len(lengths) == pytest.approx(mean_length(world), abs=0.03)
