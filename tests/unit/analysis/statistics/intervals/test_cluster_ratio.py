"""The error of a ratio over clusters."""

from __future__ import annotations

import numpy as np
import pytest

from driftscope.analysis.statistics.intervals.cluster_ratio import ratio_of


def test_the_error_is_that_of_leaving_each_request_out() -> None:
    random = np.random.RandomState(2)
    bottom = random.randint(1, 9, (20, 1)).astype(float)
    top = random.random_sample((20, 1)) * bottom
    found = ratio_of(top, bottom)
    left_out = (top.sum() - top) / (bottom.sum() - bottom)
    jackknife = np.sqrt(19 / 20 * np.square(left_out - found.value).sum())
    assert found.error[0] == pytest.approx(jackknife)
