"""The test for a split at any moment: what may differ without a change."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from scipy.stats import combine_pvalues

from driftscope.analysis.statistics.intervals.cluster_intervals import intervals
from driftscope.analysis.statistics.intervals.cluster_ratio import ratio_of
from driftscope.analysis.statistics.split_test import (
    LEAST,
    ORDERS,
    Requests,
    autocorrelation,
    fisher,
    largest_split,
    paired_step,
    split_statistic,
    step_ratio,
)


def _requests(values: np.ndarray, cluster: np.ndarray | None = None) -> Requests:
    n = len(values)
    return Requests(
        tokens=values,
        rounds=np.ones(n),
        cluster=np.arange(n) if cluster is None else cluster,
    )


def _p(requests: Requests) -> float:
    found = largest_split(requests, np.random.RandomState(1))
    assert found is not None
    return found.p


def test_two_p_values_are_joined_as_fisher_does() -> None:
    assert fisher([0.2]) == 0.2
    for pair in ([0.04, 0.5], [0.001, 0.001], [1.0, 1.0]):
        assert fisher(pair) == pytest.approx(combine_pvalues(pair).pvalue)


def test_the_statistic_is_the_weighted_difference_of_means() -> None:
    tokens, rounds = np.array([3.0, 8.0, 2.0, 1.0]), np.array([1.0, 2.0, 1.0, 1.0])
    found = split_statistic(tokens, rounds, 1)
    gap = abs(11 / 3 - 3 / 2) * np.sqrt(3 * 2)
    assert found[2] == pytest.approx(gap)
    assert found[0] == 0


def test_a_step_is_found_at_its_place() -> None:
    values = np.random.RandomState(2).standard_normal(120) + 2.0 * (np.arange(120) >= 70)
    found = largest_split(_requests(values), np.random.RandomState(1))
    assert found is not None
    assert found.p == 1 / (1 + ORDERS)
    assert abs(found.at - 70) <= 2


def test_too_few_clusters_are_no_test() -> None:
    values = np.random.RandomState(2).standard_normal(100)
    assert largest_split(_requests(values[: 2 * LEAST - 1]), np.random.RandomState(1)) is None
    few = np.repeat(np.arange(5), 20)
    assert largest_split(_requests(values, few), np.random.RandomState(1)) is None


def test_sessions_that_differ_are_no_change() -> None:
    """These numbers are a change if every request counts for itself."""
    random, calls = np.random.RandomState(3), np.zeros(2)
    for _ in range(60):
        session = np.repeat(np.arange(30), 10)
        values = random.standard_normal(30)[session] + 0.5 * random.standard_normal(300)
        calls += [_p(_requests(values, session)) <= 0.05, _p(_requests(values)) <= 0.05]
    assert calls[0] <= 8
    assert calls[1] >= 40


def test_a_step_within_sessions_that_go_on_is_found() -> None:
    """The sessions' own levels hide it from a comparison of clusters in order."""
    random, session = np.random.RandomState(4), np.arange(300) % 30
    values = 3.0 * random.standard_normal(30)[session] + random.standard_normal(300)
    assert _p(_requests(values, session)) > 0.05
    stepped = _requests(values + 1.0 * (np.arange(300) >= 180), session)
    found = largest_split(stepped, np.random.RandomState(1))
    assert found is not None
    assert found.p < 0.01
    assert abs(found.at - 180) <= 15


def test_the_difference_over_clusters_is_that_of_two_groups_where_none_is_in_both() -> None:
    random = np.random.RandomState(5)
    tokens, rounds = random.standard_normal(40) + 3, random.randint(1, 5, 40).astype(float)
    after = (np.arange(40) >= 25).astype(float)
    found = step_ratio(tokens, rounds, np.arange(40), after)
    assert found is not None
    sides = [ratio_of(tokens[m, None], rounds[m, None]) for m in (after == 0, after == 1)]
    assert found.value[0] == pytest.approx(sides[1].value[0] - sides[0].value[0])
    error = np.hypot(*(float(side.error[0]) for side in sides))
    assert found.error[0] == pytest.approx(error, rel=0.05)
    assert step_ratio(tokens, rounds, np.arange(40), np.zeros(40)) is None
    assert intervals(found) is not None


def test_repeated_prompts_are_compared_with_themselves() -> None:
    """Prompts differ much, and hard ones come later; each loses half a token."""
    prompt = np.concatenate([np.arange(20), np.arange(20)[::-1]])
    after = np.repeat([0.0, 1.0], 20)
    tokens = 5.0 - 0.2 * prompt - 0.5 * after
    value, spread, prompts = paired_step(tokens, np.ones(40), prompt, after)
    assert (value, prompts) == (pytest.approx(-0.5), 20)
    assert spread is not None
    assert spread.high < 0
    few = np.where(prompt < LEAST - 1, prompt, -1)
    assert paired_step(tokens, np.ones(40), few, after)[1] is None


def test_neighbours_that_are_alike_are_correlated() -> None:
    random = np.random.RandomState(6)
    values = random.standard_normal(400)
    assert abs(autocorrelation(values, np.ones(400))) < 0.1
    assert autocorrelation(np.repeat(values, 5), np.ones(2000)) == pytest.approx(0.8, abs=0.05)
    assert autocorrelation(np.ones(30), np.ones(30)) == 0


def test_every_order_of_four_clusters_has_the_same_largest_difference_somewhere() -> None:
    """The reference holds the data itself: the largest statistic over all orders is attained."""
    values = np.array([1.0, 2.0, 4.0, 8.0])
    largest = max(
        split_statistic(np.array(order), np.ones(4), 1).max() for order in permutations(values)
    )
    splits = [
        abs(values[list(pick)].mean() - values[[not p for p in pick]].mean())
        * np.sqrt(sum(pick) * (4 - sum(pick)))
        for pick in product([True, False], repeat=4)
        if 0 < sum(pick) < 4
    ]
    assert largest == pytest.approx(max(splits))
