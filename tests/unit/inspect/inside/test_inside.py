"""Answers about a drafter's inside: where one must fire, where it must not, and where it cannot
tell."""

from __future__ import annotations

import pytest
from support.inside_sums import inside_sums

from driftscope.analysis.statistics.drift import Answer
from driftscope.inspect.inside import Inside, inside_of
from driftscope.vocabulary import Growth


def _answers(found: Inside) -> tuple[Answer | None, Growth]:
    return found.attention_drift.answer if found.attention_drift else None, found.grows


def test_a_drafter_that_keeps_still_is_said_to() -> None:
    found = inside_of(inside_sums(24))
    assert _answers(found) == (Answer.NO_DRIFT, Growth.KEEPS_ITS_SIZE)
    assert found.lines[0].startswith("attention does not drift over depth")
    assert "keeps its size" in found.lines[1]


def test_drift_and_growth_are_said() -> None:
    found = inside_of(inside_sums(24, shift=0.15, growth=2.0))
    assert _answers(found) == (Answer.DRIFT, Growth.GROWS)
    assert found.lines[0].startswith("attention drifts over depth")
    assert "grows: 2.0" in found.lines[1]


def test_few_prompts_and_values_between_the_thresholds_cannot_tell() -> None:
    found = inside_of(inside_sums(8, shift=0.15, growth=1.12))
    assert _answers(found) == (Answer.CANNOT_TELL, Growth.CANNOT_TELL)
    assert "at least 10 prompts" in found.lines[0]
    assert "cannot be told" in found.lines[1]


def test_a_depth_that_no_draft_reaches_has_no_rate() -> None:
    confidence = inside_of(inside_sums(24)).confidence
    assert confidence.sure == pytest.approx([0.8, 0.8, 0.8, None])
    assert [each and each.value for each in confidence.right] == [0.5, 0.5, 0.5, None]
    line = inside_of(inside_sums(24)).lines[-1]
    assert "80% sure of its first token, which is right in 50%" in line


def test_one_depth_has_nothing_that_could_change() -> None:
    found = inside_of(inside_sums(12, k=1))
    assert found.attention_drift is None and found.growth is None
    assert len(found.lines) == 1


@pytest.mark.parametrize("seed", range(5))
def test_rates_of_wrong_answers(seed: int) -> None:
    """40 drafters that keep still: none is said to drift or to grow."""
    for at in range(8):
        found = inside_of(inside_sums(12, seed=100 * seed + at))
        assert Answer.DRIFT is not (found.attention_drift and found.attention_drift.answer)
        assert found.grows is not Growth.GROWS
