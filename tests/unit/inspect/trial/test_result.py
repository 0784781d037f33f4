"""The paired gain keeps its level on repairs that change nothing, and finds those that help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.inspections import FIGURES, PROMPTS, K, inside_sums, rounds

from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import mean_interval
from driftscope.inspect.checks.result import Level
from driftscope.inspect.trial.result import (
    AllPositions,
    Change,
    Gain,
    Trial,
    Tried,
    TriedRendering,
    acceptance_of,
    gain,
    inside_of,
    mean_gain,
    mean_length,
    verdict,
)

DEPTHS = 5
ANSWERS, ROUNDS = 32, 16


def _rounds(source: np.random.Generator, rate: float, spread: float = 0.15) -> list[list[int]]:
    """Rounds whose rate per depth varies by prompt."""
    rates = np.clip(rate + source.normal(0, spread, ANSWERS), 0.05, 0.95)
    return [_of_prompt(source, each) for each in rates]


def _of_prompt(source: np.random.Generator, rate: float) -> list[int]:
    hits = source.random((ROUNDS, DEPTHS)) < rate
    return [int(each) for each in hits.cumprod(axis=1).sum(axis=1)]


def test_the_length_counts_the_targets_own_token() -> None:
    found = acceptance_of([[0, 2], [1, 1]], 2)
    assert found.mean_length == 2.0
    assert found.marginal == (0.75, 0.25)
    assert found.rounds == 4
    assert found.mean_length == pytest.approx(1 + sum(found.marginal))


def test_the_interval_covers_the_true_length_in_about_95_of_100_trials() -> None:
    source = np.random.default_rng(5)
    truth = np.mean([mean_length(_rounds(source, 0.6)) for _ in range(300)])
    spreads = [acceptance_of(_rounds(source, 0.6), DEPTHS).mean_length_interval for _ in range(200)]
    inside = [each is not None and each.low <= truth <= each.high for each in spreads]
    assert 0.90 < np.mean(inside) <= 1.0


def test_repairs_that_change_nothing_are_rarely_found() -> None:
    source, found = np.random.default_rng(6), 0
    for _ in range(100):
        rates = np.clip(0.6 + source.normal(0, 0.15, ANSWERS), 0.05, 0.95)
        base = [_of_prompt(source, each) for each in rates]
        others = [[_of_prompt(source, each) for each in rates] for _ in range(20)]
        found += any(gain(base, each, len(others)).p < 0.05 for each in others)
    assert found <= 10  # 5 are expected at most


def test_a_repair_that_helps_is_found_with_its_size() -> None:
    source = np.random.default_rng(7)
    base, other = _rounds(source, 0.3, 0), _rounds(source, 0.7, 0)
    found = gain(base, other, 30)
    assert found.p < 1e-6
    assert found.interval is not None and found.interval.low > 0
    assert found.difference == pytest.approx(mean_length(other) - mean_length(base))


def test_means_over_all_positions_are_rarely_found_to_differ_by_chance() -> None:
    source, found = np.random.default_rng(8), 0
    for _ in range(200):
        # Positions of one prompt are alike, and so are both sides.
        prompt = source.normal(0, 1, (ANSWERS, 1))
        noise = source.normal(0, 0.3, (2, ANSWERS, 1)) + source.normal(0, 1, (2, ANSWERS, 15))
        base, other = (prompt + noise).tolist()
        found += mean_gain(base, other).p < 0.05
    assert 2 <= found <= 20  # 10 are expected


def test_a_shift_of_all_positions_is_found_with_its_size() -> None:
    base = np.random.default_rng(9).normal(0, 1, (ANSWERS, 15))
    found = mean_gain(base.tolist(), (base + 0.25).tolist(), 30)
    assert found.difference == pytest.approx(0.25)
    assert found.p < 1e-6


def test_the_same_rounds_differ_by_nothing() -> None:
    base = _rounds(np.random.default_rng(8), 0.5)
    found = gain(base, base, 20)
    assert found.difference == 0
    assert found.p == 1


def _trial(rate: float, seed: int, surer: float) -> Trial:
    base, other = rounds(0.5, 1), rounds(rate, seed)
    apart = np.random.default_rng(seed).normal(surer, 0.01, PROMPTS)
    tried = TriedRendering(
        rendering=Change(id="first_token_off", change="no first token", mistake="it was absent"),
        acceptance=acceptance_of(other, K),
        gain=gain(base, other, 1),
        prompts=PROMPTS,
        surer=float(apart.mean()),
        surer_interval=mean_interval(apart),
    )
    return Trial(
        prompts=PROMPTS,
        k=K,
        acceptance=acceptance_of(base, K),
        figures=dict.fromkeys(FIGURES, (1.0,) * K),
        inside=inside_of(inside_sums(PROMPTS, K)),
        tried=(),
        renderings=(tried,),
    )


@pytest.mark.parametrize(
    ("surer", "level"), [(-0.2, Level.WARNING), (0.0, Level.NOTE), (0.2, Level.NOTE)]
)
def test_more_accepted_is_a_warning_unless_the_answers_may_be_easier(
    surer: float, level: Level
) -> None:
    (found,) = verdict(_trial(0.7, 2, surer))
    assert found.id == "accepts_more_with.first_token_off"
    assert found.level is level
    assert ("easier" in found.there) is (level is Level.NOTE)


@pytest.mark.parametrize(("stopped", "ids"), [(False, ["nothing_accepted"]), (True, [])])
def test_that_no_repair_helps_is_concluded_from_all_of_them_only(
    stopped: bool, ids: list[str]
) -> None:
    dead = replace(
        _trial(0.5, 2, 0),
        acceptance=acceptance_of(rounds(0.0, 3), K),
        renderings=(),
        stopped=stopped,
    )
    assert [each.id for each in verdict(dead)] == ids


@pytest.mark.parametrize(
    ("accepted", "probability", "found"),
    [(0.2, 0.2, True), (0.2, 0.0, False), (0.0, 0.2, False), (-0.2, 0.2, False)],
)
def test_a_small_gain_is_certain_if_probability_and_acceptance_agree(
    accepted: float, probability: float, found: bool
) -> None:
    base, source = rounds(0.5, 1), np.random.default_rng(4)
    noise = source.normal(0, 0.05, (2, PROMPTS, 20))
    zeros = np.zeros((PROMPTS, 20))
    tried = Tried(
        repair=Change(id="swapped", change="norms swapped", mistake="they were swapped"),
        acceptance=acceptance_of(base, K),
        # Rounds of a server alone do not show it.
        gain=Gain(difference=0.2, interval=Interval(low=-0.2, high=0.6), p=0.3),
        prompts=PROMPTS,
        all_positions=AllPositions(
            accepted=mean_gain(zeros.tolist(), (noise[0] + accepted).tolist()),
            probability=mean_gain(zeros.tolist(), (noise[1] + probability).tolist(), 25),
        ),
    )
    results = list(verdict(replace(_trial(0.5, 2, 0), tried=(tried,), renderings=())))
    assert [each.id for each in results] == (["repaired_by.swapped"] if found else [])
    assert all("all positions" in each.rule for each in results)


def test_less_accepted_is_nothing() -> None:
    assert not list(verdict(_trial(0.3, 3, -0.2)))


def test_equal_rates_are_rarely_anything() -> None:
    found = [list(verdict(_trial(0.5, seed, -0.2))) for seed in range(10, 110)]
    assert sum(map(bool, found)) <= 7  # half of 5, as only gains count
