"""A rendering is a warning only if more is accepted and the target is no surer of its answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.inside_sums import inside_sums
from support.inspections import FIGURES, PROMPTS, K, rounds

from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import mean_interval
from driftscope.inspect.checks.result import Level
from driftscope.inspect.inside import inside_of
from driftscope.inspect.trial.result import (
    AllPositions,
    Change,
    Gain,
    Trial,
    Tried,
    TriedRendering,
    acceptance_of,
    gain,
    mean_gain,
    verdict,
)


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
