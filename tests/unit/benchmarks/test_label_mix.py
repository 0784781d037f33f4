"""Runs that served other shares of two labels, with few trials."""

from __future__ import annotations

import pytest

from benchmarks.calibration.pairs import LABEL_MIX, MIXES, other_mixes

TRIALS = 25
pytestmark = pytest.mark.slow


def test_another_mix_of_labels_is_no_difference_of_the_drafter() -> None:
    rows = list(other_mixes(TRIALS))
    assert [row.mix for row in rows] == list(MIXES)
    assert not LABEL_MIX.breaches(rows, TRIALS)
    assert all(row.as_served > 0.8 for row in rows[1:]), "the mixes do differ"
