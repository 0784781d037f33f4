"""The experiment on the shipped pair: its estimates, and what the shipped figures say."""

from __future__ import annotations

import numpy as np
import pytest

from driftscope.analysis.figures.attention_drift import DriftAnswer
from driftscope_lab.phenomenon.evidence import (
    AS_TRAINED,
    FORMS,
    PromptSums,
    RecordedDrafter,
    estimate_of,
    judged,
    robustness,
)

SIMULATED, K = 40, 8


def sums(rng: np.random.Generator, length: float, sink: np.ndarray) -> PromptSums:
    """Sums of prompts whose acceptance length and sink mass are about these."""
    rounds = rng.integers(20, 40, SIMULATED).astype(float)
    rate = (length - 1) / K * rng.lognormal(0.0, 0.05, SIMULATED)
    reached = np.tile((rounds * rate)[:, None], (1, K))
    noise = rng.lognormal(0.0, 0.05, (SIMULATED, 1))
    return PromptSums(
        prompts=tuple(f"{at:02d}" for at in range(SIMULATED)),
        rounds=rounds,
        reached=reached,
        chains=rounds,
        sink=rounds[:, None] * sink * noise,
        near=rounds[:, None] * (1 - sink) * noise,
        rms=np.tile(rounds[:, None], (1, K)),
    )


def recorded(
    seed: int, perturbed: float, sink: np.ndarray, drift: DriftAnswer, trained: float = 3.0
) -> RecordedDrafter:
    rng = np.random.default_rng(seed)
    lengths = {form: trained if form == AS_TRAINED else trained * perturbed for form in FORMS}
    return RecordedDrafter(
        sums={form: sums(rng, length, sink) for form, length in lengths.items()}, drift=drift
    )


FALLS, STAYS = np.linspace(0.5, 0.1, K), np.full(K, 0.15)


def test_a_drafter_of_known_length_and_sink() -> None:
    one = sums(np.random.default_rng(0), 3.0, FALLS)
    length = estimate_of(one.length())
    assert length.low < 3.0 < length.high
    kept = estimate_of(one.sink_kept())
    assert kept.value == pytest.approx(0.2)
    assert estimate_of(one.by_depth("sink"), K - 1).value == pytest.approx(0.1, rel=0.05)


def test_the_interval_of_robustness_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        first = recorded(seed, 0.7, STAYS, DriftAnswer.DRIFT).sums
        second = recorded(1000 + seed, 0.84, STAYS, DriftAnswer.DRIFT).sums
        ratio = robustness(first, second)
        held += ratio.low < 1.2 < ratio.high
    # 95 % of 200 within three standard errors
    assert 180 <= held <= 200


def test_all_criteria_are_met_by_the_published_pattern_and_none_by_twins() -> None:
    """A sink that was never there is not lost."""
    robust = recorded(2, 0.95, STAYS, DriftAnswer.NO_DRIFT)
    published = judged(recorded(1, 0.6, FALLS, DriftAnswer.DRIFT), robust)
    assert [one.met for one in published] == [True, True, True]
    twin = recorded(3, 0.8, STAYS, DriftAnswer.CANNOT_TELL)
    twins = judged(twin, recorded(4, 0.8, STAYS, DriftAnswer.NO_DRIFT))
    assert [one.met for one in twins] == [False, False, False]
    sink, *_ = judged(recorded(5, 0.6, FALLS / 10, DriftAnswer.DRIFT), robust)
    assert not sink.met and "has 0.05" in sink.figures


def test_prompts_without_rounds_in_a_form_are_left_out_of_every_form() -> None:
    first = recorded(7, 0.7, STAYS, DriftAnswer.DRIFT).sums
    second = recorded(8, 0.84, STAYS, DriftAnswer.DRIFT).sums
    kept = first[AS_TRAINED].prompts[3:]
    part = {form: sums.of(kept) for form, sums in first.items()}
    assert robustness(part, second) == robustness(
        part, {form: sums.of(kept) for form, sums in second.items()}
    )
