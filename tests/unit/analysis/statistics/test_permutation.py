"""The joint test of all depths: what it finds, and how often chance fools it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.simulate import Truth
from support.simulate.sums import side

from driftscope.analysis.compare import MARGINAL, Comparison, comparison
from driftscope.analysis.pairing import BY_ID, UNPAIRED, Pairing
from driftscope.analysis.statistics.permutation import DRAWS, joint, look_alikes
from driftscope.analysis.statistics.ratio import Ratio, ratio_of

pytestmark = pytest.mark.slow

TRUTH = Truth(requests=40, rounds=20, k=4)
FIRST = TRUTH.conditional[0]
WORLDS = {
    "dead": ((1e-9,) * 4, 1),
    "dead from 2": ((FIRST, *(1e-9,) * 3), 2),
    "halved": ((FIRST / 2, *TRUTH.conditional[1:4]), 1),
}
"""Conditional acceptance of a broken drafter, and the depth from which it differs."""
BOUND = 0.068
"""Share of equal runs that may be called different: 5 %, and 1.64 standard errors of 300 trials."""


def _compared(first: Truth, second: Truth, trial: int, *, paired: bool) -> Comparison:
    a = side(replace(first, seed=2 * trial, prompts_seed=trial))
    b = side(replace(second, seed=2 * trial + 1, prompts_seed=trial if paired else 10_000 + trial))
    rows = np.arange(len(a.labels) if paired else 0)
    how = Pairing(how=BY_ID if paired else UNPAIRED, first=rows, second=rows, alone=0)
    return comparison(a, b, ("healthy", "other"), how)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_a_broken_drafter_is_always_found(world: str, paired: bool) -> None:
    conditional, depth = WORLDS[world]
    broken = replace(TRUTH, conditional=conditional)
    found = [_compared(TRUTH, broken, trial, paired=paired) for trial in range(20)]
    assert all(depth in each.apart_at for each in found)
    assert sum(each.parts_from == depth for each in found) >= 17
    for each in found:
        at = each.at(MARGINAL)[depth - 1]
        assert at.interval is not None and at.interval.high < 0


@pytest.mark.parametrize("paired", [True, False])
def test_two_runs_of_one_drafter_seldom_part(paired: bool) -> None:
    parted = sum(
        _compared(TRUTH, TRUTH, trial, paired=paired).parts_from is not None for trial in range(300)
    )
    assert parted / 300 <= BOUND


@pytest.mark.parametrize("paired", [True, False])
def test_the_bound_holds_every_true_difference(paired: bool) -> None:
    """Simultaneous intervals of all depths hold the truth in 19 of 20 runs."""
    other = replace(TRUTH, conditional=(0.75, 0.7, 0.66, 0.6))
    truth, held = other.marginal() - TRUTH.marginal(), 0
    for trial in range(200):
        ends = [d.simultaneous for d in _compared(TRUTH, other, trial, paired=paired).at(MARGINAL)]
        held += all(e and e.low <= t <= e.high for e, t in zip(ends, truth, strict=True))
    assert held / 200 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)


def test_a_depth_at_which_neither_run_accepts_still_has_an_interval() -> None:
    """0 of about 800 rounds each: the difference is below 3.7 / n, for all depths a bit more."""
    dead = replace(TRUTH, conditional=(0.8, 0.7, 1e-9, 0.5))
    found = _compared(dead, dead, 0, paired=True)
    for each in found.at(MARGINAL)[2:]:
        assert each.p is None and each.difference == 0
        assert each.interval is not None and each.simultaneous is not None
        assert -0.006 < each.interval.low < 0 < each.interval.high < 0.006
        assert each.simultaneous.low < each.interval.low
    assert found.bound is not None


def _ratio(top: list[list[float]], rounds: float = 10.0) -> Ratio:
    sums = np.array(top, dtype=np.float64)
    return ratio_of(sums, np.full((len(sums), 1), rounds))


def test_the_most_extreme_signs_are_as_rare_as_they_are() -> None:
    """Every one of 6 pairs differs the same way: 2 of 64 sign patterns are as extreme."""
    a = _ratio([[1.0], [2.0], [3.0], [2.0], [1.0], [3.0]])
    b = _ratio([[3.0], [5.0], [5.5], [5.0], [3.5], [6.0]])
    found = joint(a, b, paired=True)
    assert found.p[0] == pytest.approx(2 / 64, abs=4 * np.sqrt(2 / 64 / DRAWS))
    assert found.gap[0] == pytest.approx(b.value[0] - a.value[0])


def test_the_error_is_the_jackknife_s() -> None:
    rng = np.random.default_rng(1)
    a, b = (_ratio(rng.uniform(0, 10, (30, 3)).tolist()) for _ in range(2))
    found = joint(a, b, paired=False)
    assert found.error == pytest.approx(np.sqrt(np.square(a.error) + np.square(b.error)))
    moved = np.square(b.influence - a.influence).sum(axis=0)
    assert joint(a, b, paired=True).error == pytest.approx(np.sqrt(29 / 30 * moved))


RANDOM = np.random.RandomState(0)
N = 120
ONE_LABEL = np.zeros(N, dtype=np.int64)


def test_repetitions_of_a_prompt_are_one_group() -> None:
    prompt = np.arange(N) % 30
    group = look_alikes(ONE_LABEL, prompt % 7, 1000 + prompt)
    assert group is not None
    assert len(np.unique(group)) == 30
    assert all(len(np.unique(group[prompt == each])) == 1 for each in range(30))


def test_agreement_by_chance_is_none() -> None:
    """Nearly every answer begins with rounds that are accepted whole, whatever the prompt."""
    easy = np.where(RANDOM.random_sample(N) < 0.9, 0, 1 + np.arange(N))
    assert look_alikes(ONE_LABEL, np.arange(N) % 7, easy) is None


def test_a_label_that_is_easy_is_no_repetition() -> None:
    label = np.arange(N) % 2
    beginning = np.where(label == 0, 0, 1 + np.arange(N))
    assert look_alikes(label, np.arange(N) % 5, beginning) is None


def test_requests_of_unknown_beginning_stay_alone() -> None:
    prompt = np.arange(N) % 30
    beginning = np.where(np.arange(N) < 60, 1000 + prompt, -1)
    group = look_alikes(ONE_LABEL, prompt, beginning)
    assert group is not None
    assert len(np.unique(group)) == 30 + 60
