"""Relations within strata, of two kinds of rounds or of a figure, and how often chance is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.calibration.inside import RELATIONS, RelationWorld, related_rows
from driftscope.analysis.statistics.strata import (
    AssociationAnswer,
    Halves,
    association,
    within_requests,
)

RANDOM = np.random.default_rng(5)


def halves(kept: float, *, requests: int = 40, harder: float = 0.0) -> Halves:
    """Return requests of which the second kind keeps this share; those with more rounds of the
    second kind accept less of both kinds by `harder`."""
    rounds = RANDOM.integers(5, 40, (requests, 2)).astype(float)
    share = rounds[:, 1] / rounds.sum(axis=1)
    rate = np.clip(0.6 - harder * share + 0.1 * RANDOM.standard_normal(requests), 0.02, 0.98)
    rates = np.column_stack([rate, rate * kept])
    accepted = RANDOM.binomial(rounds.astype(int) * 4, rates) * 1.0
    code = np.arange(requests)
    return Halves(accepted=accepted, rounds=rounds, request=code, cluster=code)


def test_the_share_kept_is_that_of_the_truth() -> None:
    found = within_requests(halves(0.5, requests=400), "rest", "json")
    assert found.kept == pytest.approx(0.5, abs=0.03)
    assert found.kept_interval.low < 0.5 < found.kept_interval.high
    assert found.p is not None
    assert found.p < 1e-6
    assert (found.first, found.second, found.requests) == ("rest", "json", 400)


def test_requests_that_hold_much_of_it_and_are_harder_are_not_blamed_on_it() -> None:
    data = halves(1.0, requests=400, harder=0.5)
    pooled = data.accepted.sum(axis=0) / data.rounds.sum(axis=0)
    found = within_requests(data, "rest", "json")
    assert pooled[1] / pooled[0] < 0.9
    assert found.kept == pytest.approx(1.0, abs=0.04)


def test_requests_with_one_kind_only_say_nothing() -> None:
    data = halves(0.5)
    rounds = data.rounds.copy()
    rounds[:, 1] = 0
    one = Halves(accepted=data.accepted, rounds=rounds, request=data.request, cluster=data.cluster)
    assert within_requests(one, "rest", "json") is None


def test_a_kind_that_accepts_nothing_is_tested_exactly() -> None:
    found = within_requests(halves(0.0), "rest", "json")
    assert found.kept == 0.0
    assert found.p == 0.0
    assert 0.0 < found.kept_interval.high < 0.1


def test_one_request_shows_no_spread() -> None:
    found = within_requests(halves(0.5, requests=1), "rest", "json")
    assert found.kept_interval is None
    assert found.p is None


def test_comparing_the_requests_would_call_it_every_time() -> None:
    """Hard prompts have a larger measure and less acceptance in these runs."""
    rows = related_rows(RelationWorld(), 1)[0]
    requests = np.unique(rows.cluster)
    means = np.array([[v[rows.cluster == r].mean() for v in (rows.x, rows.y)] for r in requests])
    assert np.corrcoef(means.T)[0, 1] < -0.8


def test_a_relation_is_found() -> None:
    found = association(related_rows(RELATIONS["an effect"], 1)[0])
    assert found.answer() is AssociationAnswer.LESS


def test_the_estimate_is_that_of_a_regression_with_a_dummy_for_each_stratum() -> None:
    rows = related_rows(RelationWorld(requests=12, rounds=30, effect=-0.3), 3)[0]
    found = association(rows)
    varies = np.array([np.ptp(rows.x[rows.stratum == s]) > 0 for s in rows.stratum])
    strata, code = np.unique(rows.stratum[varies], return_inverse=True)
    design = np.column_stack([rows.x[varies], rows.covariates[varies], np.eye(len(strata))[code]])
    slope = np.linalg.lstsq(design, rows.y[varies], rcond=None)[0][0]
    assert found.per_sd == pytest.approx(slope * found.sd)
    assert found.rows == varies.sum()


@pytest.mark.parametrize(
    "world", [RelationWorld(requests=9), RelationWorld(requests=10, rounds=1)], ids=str
)
def test_too_little_data_gives_no_estimate(world: RelationWorld) -> None:
    assert association(related_rows(world, 1)[0]) is None


def test_a_measure_that_hardly_moves_gives_no_estimate() -> None:
    rows = related_rows(RelationWorld(), 1)[0]
    assert association(replace(rows, x=1e-4 * rows.x), least_sd=0.005) is None


@pytest.mark.parametrize("name", ["a small effect", "an effect, answers of 6 to 15 rounds"])
def test_the_size_is_not_inflated_by_strata_that_all_accept(name: str) -> None:
    """Leaving them out selects on the outcome: sizes were 1.25 and 1.6 times the true ones."""
    runs = [related_rows(RELATIONS[name], seed) for seed in range(30)]
    made = [association(rows) for rows, _ in runs]
    true = [association(replace(rows, y=chance)) for rows, chance in runs]
    sizes = [sum(effect.per_sd for effect in found if effect) for found in (made, true)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.15)
