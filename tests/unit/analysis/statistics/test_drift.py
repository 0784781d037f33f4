"""Attention drift against the recency-matched null, in worlds of known truth."""

from __future__ import annotations

import pytest

from benchmarks.calibration.inside import (
    ATTENTIONS,
    NULLS,
    POST_NORM,
    PRE_NORM,
    AttentionWorld,
    drift_of,
)
from driftscope.analysis.figures.attention_drift import (
    MARGIN,
    DriftAnswer,
)

TRIALS = 30


def _answers(world: AttentionWorld) -> list[DriftAnswer]:
    return [drift_of(world, seed).answer for seed in range(TRIALS)]


@pytest.mark.parametrize("name", NULLS)
def test_a_taste_for_recent_places_is_no_drift(name: str) -> None:
    """The chain's own tokens get up to half of the attention, as any token in their place."""
    assert set(_answers(NULLS[name])) == {DriftAnswer.NO_DRIFT}


def test_the_published_pattern_is_drift_only_without_norm() -> None:
    assert set(_answers(PRE_NORM)) == {DriftAnswer.DRIFT}
    after = _answers(POST_NORM)
    assert DriftAnswer.DRIFT not in after
    assert after.count(DriftAnswer.NO_DRIFT) > 0.7 * TRIALS


def test_a_shift_at_the_margin_is_neither() -> None:
    answers = _answers(ATTENTIONS["shift at the margin"])
    assert answers.count(DriftAnswer.CANNOT_TELL) >= 0.8 * TRIALS


def test_eight_sessions_are_too_few_to_tell() -> None:
    assert set(_answers(ATTENTIONS["no drift, 8 sessions"])) == {DriftAnswer.CANNOT_TELL}


def test_the_shift_splits_into_its_first_step_and_its_trend() -> None:
    found = drift_of(PRE_NORM, 1)
    assert found.shift.value == pytest.approx(0.17, abs=0.03)
    assert found.first_step.value + found.trend.value == pytest.approx(found.shift.value)
    assert found.own_excess[-1].value == pytest.approx(found.shift.value), "the chain has it all"
    assert found.sink_kept.value == pytest.approx(0.08 / 0.46, abs=0.02)


def test_the_answer_needs_chains_and_requests() -> None:
    few = drift_of(AttentionWorld(requests=9, chains=50), 1)
    assert (few.answer, few.shift) == (DriftAnswer.CANNOT_TELL, None)
    assert few.clusters == 9
    assert drift_of(AttentionWorld(requests=24, chains=2), 1).shift is None, "48 chains"
    assert MARGIN == 0.05
