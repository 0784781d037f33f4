"""The no-drift expectation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.metrics.attention import even_share, no_drift, over_layers, visible_sink


@given(st.integers(1, 500), st.integers(1, 8), st.integers(1, 12))
def test_without_a_sink_it_is_even_attention(position: int, sink_tokens: int, k: int) -> None:
    """With nothing on the sink, d-1 of the p + d - sink_tokens other visible slots."""
    if position + 1 <= sink_tokens:
        return
    found = no_drift(np.array([position]), np.array([0.0]), None, sink_tokens, k)
    expected = [(d - 1) / (position + d - sink_tokens) for d in range(1, k + 1)]
    assert found.self_mass.tolist() == pytest.approx(expected)


@given(st.integers(10, 500), st.floats(0, 1), st.integers(1, 12))
def test_all_of_the_attention_is_accounted_for(position: int, sink: float, k: int) -> None:
    found = no_drift(np.array([position]), np.array([sink]), None, 1, k)
    assert (found.self_mass + found.kept).tolist() == pytest.approx([1.0] * k)
    assert found.self_mass[0] == 0.0
    assert (np.diff(found.self_mass) >= 0).all()


def test_a_learned_sink_bias_takes_from_what_the_chain_would_get() -> None:
    position, sink = np.array([9]), np.array([0.0])
    plain = no_drift(position, sink, None, 1, 3).self_mass
    biased = no_drift(position, sink, np.array([0.5]), 1, 3).self_mass
    assert (biased[1:] < plain[1:]).all()


def test_a_context_that_is_all_sink_says_nothing() -> None:
    both = no_drift(np.array([2, 99]), np.array([0.0, 0.0]), None, 4, 3)
    one = no_drift(np.array([99]), np.array([0.0]), None, 4, 3)
    assert both.self_mass.tolist() == one.self_mass.tolist()


def test_even_share_is_slots_over_context() -> None:
    assert even_share(np.array([9, 19]), 2) == pytest.approx((0.2 + 0.1) / 2)
    assert even_share(np.array([0]), 4) == 1.0


def test_a_layer_to_which_a_class_does_not_apply_is_no_zero() -> None:
    masses = np.array([[[0.4, np.nan], [np.nan, np.nan]]])
    assert np.array_equal(over_layers(masses), [[0.4, np.nan]], equal_nan=True)


def test_a_sink_counts_as_far_as_it_is_in_the_context() -> None:
    assert visible_sink(np.array([0, 3, 4, 99]), (0, 4, 50)).tolist() == [1, 1, 2, 3]
    assert visible_sink(np.array([5]), ()).tolist() == [0]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1, max_size=9))
def test_a_weight_counts_a_chain_several_times(chains: list[tuple[int, int]]) -> None:
    position, weight = (np.array(column) for column in zip(*chains, strict=True))
    again = np.repeat(position, weight)
    assert even_share(position, 2, 1.0 * weight) == pytest.approx(even_share(again, 2))
    zero = np.zeros(len(position))
    weighted = no_drift(position, zero, None, 1, 3, 1.0 * weight).self_mass
    plain = no_drift(again, np.zeros(len(again)), None, 1, 3).self_mass
    assert np.allclose(weighted, plain, equal_nan=True)
