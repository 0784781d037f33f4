"""A rendering is a warning only if more is accepted and the target is no surer of its answers."""

from __future__ import annotations

import numpy as np
import pytest
from support.inspections import FIGURES, PROMPTS, K, rounds

from driftscope.analysis.statistics.clusters import mean_interval
from driftscope.inspect.checks.check_result import Level
from driftscope.inspect.trial.acceptance import acceptance_of, gain
from driftscope.inspect.trial.trial_result import Change, Trial, TriedRendering
from driftscope.inspect.trial.verdict import verdict


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
        as_is=acceptance_of(base, K),
        figures=dict.fromkeys(FIGURES, (1.0,) * K),
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


def test_less_accepted_is_nothing() -> None:
    assert not list(verdict(_trial(0.3, 3, -0.2)))


def test_equal_rates_are_rarely_anything() -> None:
    found = [list(verdict(_trial(0.5, seed, -0.2))) for seed in range(10, 110)]
    assert sum(map(bool, found)) <= 7  # half of 5, as only gains count
