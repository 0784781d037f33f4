"""Attention masses, and the deprecated `no_drift_self`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.expressions import evaluate

from driftscope.metrics.attention import (
    even_share,
    free_slots,
    layer_means,
    no_drift_self,
    over_layers,
    slot_weight,
    visible_sink,
)

chains = st.lists(
    st.tuples(st.integers(1, 500), st.floats(0, 0.5), st.floats(0, 0.5)), min_size=1, max_size=50
)


def _expected(
    chains: list[tuple[int, float, float]], depth: int, sink_tokens: int
) -> list[float | None]:
    position, sink, null = (list(column) for column in zip(*chains, strict=True))
    return evaluate(
        lambda t: no_drift_self(
            slot_weight(
                free_slots(t.position, visible_sink(t.position, range(sink_tokens))), t.sink, t.null
            ),
            depth,
        ),
        position=position,
        sink=sink,
        null=null,
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1), st.integers(1, 8), st.integers(1, 12))
def test_without_a_sink_it_is_even_attention(
    positions: list[int], sink_tokens: int, depth: int
) -> None:
    """With nothing on the sink, d-1 of the p + d - sink_tokens other visible slots."""
    positions = [p for p in positions if p + 1 > sink_tokens] or [sink_tokens]
    found = _expected([(p, 0.0, 0.0) for p in positions], depth, sink_tokens)
    assert found == pytest.approx([(depth - 1) / (p + depth - sink_tokens) for p in positions])


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(chains)
def test_it_starts_at_0_and_grows_with_depth(chains: list[tuple[int, float, float]]) -> None:
    by_depth = np.array([_expected(chains, depth, 1) for depth in range(1, 6)])
    assert (by_depth[0] == 0).all()
    assert (np.diff(by_depth, axis=0) >= 0).all()
    assert (by_depth < 1).all()


def test_a_learned_sink_bias_takes_from_what_the_chain_would_get() -> None:
    plain, biased = (_expected([(9, 0.0, null)], 3, 1)[0] for null in (0.0, 0.5))
    assert plain is not None and biased is not None
    assert biased < plain


def test_a_context_that_is_all_sink_says_nothing() -> None:
    assert _expected([(2, 0.0, 0.0), (99, 0.0, 0.0)], 3, 4) == [None, pytest.approx(2 / 98)]


def test_even_share_is_slots_over_context() -> None:
    found = evaluate(lambda t: even_share(t.position, t.slots), position=[9, 0], slots=[2, 4])
    assert found == [pytest.approx(0.2), 1.0]


def test_a_layer_to_which_a_class_does_not_apply_is_no_zero() -> None:
    nan = float("nan")
    found = evaluate(lambda t: over_layers([t.a, t.b]), a=[0.4, nan, 0.2], b=[nan, nan, 0.4])
    assert found == [0.4, None, pytest.approx(0.3)]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [((0, 4, 50), [1, 1, 2, 3]), ((), [0, 0, 0, 0]), ((0, 1), [1, 2, 2, 2])],
)
def test_a_sink_counts_as_far_as_it_is_in_the_context(
    slots: tuple[int, ...], expected: list[int]
) -> None:
    found = evaluate(lambda t: visible_sink(t.position, slots), position=[0, 3, 4, 99])
    assert found == expected


def test_a_serving_process_averages_over_the_same_layers() -> None:
    assert layer_means(np.array([[[0.4, np.nan], [np.nan, np.nan]]])) == pytest.approx(
        np.array([[0.4, np.nan]]), nan_ok=True
    )
