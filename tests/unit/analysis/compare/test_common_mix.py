"""The mix of labels at which two runs are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulate import Prompts, Truth
from support.simulate.sums import side

from driftscope.analysis.compare.common_mix import common_mix, figures_at
from driftscope.analysis.compare.comparison_verdict import mix_words, verdict
from driftscope.analysis.compare.run_comparison import (
    LENGTH,
    Comparison,
    comparison,
    figures_of,
)
from driftscope.analysis.figures.side import UNPAIRED, Pairing, Side
from driftscope.analysis.statistics.mix_adjustment import OTHER

EASY, HARD = Prompts(label="easy", shift=0.8), Prompts(label="hard", shift=-0.8)
TRUTH = Truth(requests=80, rounds=10, k=4)


def _run(seed: int, *kinds: Prompts) -> Side:
    return side(replace(TRUTH, prompts=kinds, seed=seed, prompts_seed=seed))


def _shared(easy: float, seed: int) -> Side:
    return _run(seed, replace(EASY, share=easy), replace(HARD, share=1 - easy))


def test_the_mix_is_the_mean_of_both_runs_shares() -> None:
    a, b = _shared(0.3, 1), _shared(0.7, 2)
    easy = [
        float(run.labelled("easy").rounds.rounds.sum() / run.rounds.rounds.sum()) for run in (a, b)
    ]
    mix = common_mix(a, b)
    assert mix["easy"] == pytest.approx(sum(easy) / 2)
    assert sum(mix.values()) == pytest.approx(1.0)


def test_figures_at_a_mix_are_the_average_of_the_labels_figures() -> None:
    run = _shared(0.3, 1)
    mix = {"easy": 0.6, "hard": 0.4}
    found = figures_at(run, mix, 4)
    easy, hard = (figures_of(run.labelled(name).rounds, 4) for name in mix)
    assert found.value == pytest.approx(0.6 * easy.value + 0.4 * hard.value)
    # requests have one label, so the variances of the labels add up
    wanted = np.sqrt(np.square(0.6 * easy.error) + np.square(0.4 * hard.error))
    assert found.error == pytest.approx(wanted, rel=0.03)


def test_one_mix_is_none_and_rare_labels_count_as_one() -> None:
    assert common_mix(_shared(0.5, 1), _shared(0.5, 1)) == {}
    assert common_mix(_run(1, EASY), _run(2, EASY)) == {}
    rare = [Prompts(label=f"rare {n}", share=0.05) for n in range(4)]
    a = _run(1, replace(EASY, share=0.5), replace(HARD, share=0.3), *rare)
    b = _run(2, replace(EASY, share=0.2), replace(HARD, share=0.6), *rare)
    assert list(common_mix(a, b)) == [OTHER, "easy", "hard"]


def test_the_verdict_names_the_mix() -> None:
    a, b = _shared(0.2, 1), _shared(0.8, 2)
    found = _compared(a, b)
    (length,) = found.at(LENGTH)
    assert length.interval is not None
    assert length.interval.low < 0 < length.interval.high
    assert verdict(found).endswith(", at one mix of labels")
    assert "easy and" in mix_words(found)


def test_a_label_with_too_few_prompts_is_left_out_and_said_so() -> None:
    a, b = _run(1, replace(EASY, share=0.3), replace(HARD, share=0.7)), _run(2, EASY)
    assert common_mix(a, b) == {"easy": 1.0}
    found = _compared(a, b)
    (length,) = found.at(LENGTH)
    assert length.first == pytest.approx(figures_of(a.labelled("easy").rounds, 4).value[0])
    assert mix_words(found).endswith("where both have enough prompts: easy.")


def test_runs_without_a_common_label_are_compared_as_served() -> None:
    assert common_mix(_run(1, EASY), _run(2, HARD)) == {}


def test_few_clusters_with_most_of_the_weight_leave_few_degrees_of_freedom() -> None:
    run = _run(3, replace(EASY, share=0.15), replace(HARD, share=0.85))
    clusters = [int((np.array(run.labels) == name).sum()) for name in ("easy", "hard")]
    half, alone = figures_at(run, {"easy": 0.5, "hard": 0.5}, 4), figures_at(run, {"easy": 1.0}, 4)
    assert clusters[0] < 20 < clusters[1]
    assert alone.df[0] < half.df[0] < 2 * clusters[0]


def _compared(a: Side, b: Side) -> Comparison:
    none = np.empty(0, dtype=np.int64)
    return comparison(a, b, ("a", "b"), Pairing(how=UNPAIRED, first=none, second=none, alone=0))
