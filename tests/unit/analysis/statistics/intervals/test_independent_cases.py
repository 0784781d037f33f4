"""Intervals of quantiles of independent values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from driftscope.analysis.closeup import AT
from driftscope.analysis.statistics.intervals.independent_cases import quantile_interval


@pytest.mark.parametrize(("n", "share"), [(40, 0.5), (200, 0.5), (200, 0.95)])
def test_a_quantile_s_interval_covers_it_whatever_the_shape(n: int, share: float) -> None:
    random, trials = np.random.RandomState(2), 600
    truth, covered = float(np.exp(ndtri(share))), 0
    for _ in range(trials):
        kept = np.quantile(random.lognormal(size=n), AT)
        found = quantile_interval(share, n, AT, kept)
        assert found is not None
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / trials <= 0.985


def test_a_quantile_near_the_end_of_few_values_has_no_interval() -> None:
    assert quantile_interval(0.95, 20, (0.0, 1.0), (0.0, 1.0)) is None
    assert quantile_interval(0.5, 0, (0.0, 1.0), (0.0, 1.0)) is None
