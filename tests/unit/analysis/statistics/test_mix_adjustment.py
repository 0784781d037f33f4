"""Residuals of requests from the mean of their kind."""

from __future__ import annotations

import numpy as np

from driftscope.analysis.statistics.mix_adjustment import LEAST_CLUSTERS, cells, residuals


def _text(values: np.ndarray) -> np.ndarray:
    return values.astype(str)


def test_a_cell_of_few_clusters_is_pooled_upwards() -> None:
    label = np.repeat(["a", "b"], [30, 12])
    context = np.array(["1"] * 20 + ["2"] * 7 + ["3"] * 3 + ["1"] * 12)
    found = cells(np.arange(42), (label, context))
    assert found[:20].tolist() == [found[0]] * 20
    assert found[20:30].tolist() == [found[20]] * 10, "7 and 3 requests of a label together"
    assert found[30:].tolist() == [found[30]] * 12
    assert len({found[0], found[20], found[30]}) == 3


def test_requests_of_few_sessions_make_no_cell_of_their_own() -> None:
    label = np.repeat(["a", "b"], [30, 30])
    few = np.concatenate([np.arange(30), 30 + np.arange(30) % (LEAST_CLUSTERS - 1)])
    assert len(set(cells(np.arange(60), (label,)).tolist())) == 2
    own, other = cells(few, (label,))[[0, 59]]
    assert own != other, "what is left is a cell of the last resort"
    assert residuals(np.ones(60), np.ones(60), few, (label,)).tolist() == [0.0] * 60


def test_residuals_of_each_cell_sum_to_nothing() -> None:
    random = np.random.RandomState(3)
    rounds = random.randint(1, 9, 90).astype(float)
    label = _text(np.arange(90) % 3)
    tokens = rounds * (1 + np.arange(90) % 3) + random.standard_normal(90)
    left = residuals(tokens, rounds, np.arange(90), (label,))
    for each in "012":
        assert abs(left[label == each].sum()) < 1e-9
    assert np.abs(left / rounds).max() < 4


def test_a_step_stays_where_the_mix_does() -> None:
    """Both kinds lose a token half-way; the residuals show all of it."""
    label, late = _text(np.arange(200) % 2), np.arange(200) >= 100
    tokens = 3.0 + (label == "1") - late
    left = residuals(tokens, np.ones(200), np.arange(200), (label,))
    assert np.allclose(left, 0.5 - late)


def test_every_factor_counts_where_cells_are_small() -> None:
    """Nine contexts by two batch sizes: no cell has 10 requests, and each factor has an effect."""
    context, batch = np.arange(90) % 9, np.arange(90) // 45
    tokens = 3.0 + 0.2 * context - 1.0 * batch
    names = (np.full(90, "all"), _text(context), _text(batch))
    left = residuals(tokens, np.ones(90), np.arange(90), names)
    assert np.abs(left).max() < 1e-9
