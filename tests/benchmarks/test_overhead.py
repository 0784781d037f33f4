"""What recording adds is read off a run's own steps: the recorded one, and the one after it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.overhead import ONE_IN, added_by_recording

STEP_S, RECORDED_S, AFTER_S = 0.02, 0.001, 0.0005
GROUPS = 30


def _steps(batch: int) -> pd.DataFrame:
    """Steps of STEP_S that are recorded one in ONE_IN, which costs then and in the step after."""
    at = np.arange(GROUPS * ONE_IN)
    took = STEP_S + RECORDED_S * (at % ONE_IN == 0) + AFTER_S * (at % ONE_IN == 1)
    return pd.DataFrame({
        "step": at, "time_s": 1e9 + took.cumsum(), "recorded": at % ONE_IN == 0, "chains": batch,
    })  # fmt: skip


def test_both_steps_count() -> None:
    found = added_by_recording(_steps(8), 8)
    assert len(found["added"]) == GROUPS - 1, "nothing is known of how long the first step took"
    assert found["step_s"] == pytest.approx([STEP_S] * (GROUPS - 1), rel=1e-3)
    assert found["added"] == pytest.approx(
        [(RECORDED_S + AFTER_S) / STEP_S] * (GROUPS - 1), rel=1e-3
    )


def test_other_requests_or_a_pause_between_make_no_pair() -> None:
    steps = _steps(8)
    steps.loc[10 * ONE_IN :, "time_s"] += 5.0
    steps.loc[10 * ONE_IN :, "step"] += 1
    steps.loc[20 * ONE_IN + 2 :, "chains"] = 7
    found = added_by_recording(steps, 8)
    assert len(found["added"]) == GROUPS - 3
    assert max(found["added"]) < 0.1


def test_a_batch_that_has_mostly_ended_is_none() -> None:
    assert added_by_recording(_steps(5), 8) == {"step_s": [], "added": []}
