"""Attention masses."""

from __future__ import annotations

import numpy as np
import pytest
from support.expressions import evaluate

from driftscope.metrics.attention import (
    even_share,
    layer_means,
    over_layers,
    visible_sink,
)


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
