"""Independence of a run's requests, and whether long answers are the easy ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.simulate import Truth
from support.simulate.sums import side

from driftscope.analysis.figures.requests import own_units
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.summary.run_summary import Independence, independence_of


def _rounds(requests: int, seed: int = 3) -> Rounds:
    return side(Truth(requests=requests, rounds=20, k=4, seed=seed, prompts_seed=seed)).rounds


def _long_if_easy(rounds: Rounds) -> Rounds:
    """Return the rounds with three times as many of each request that accepts more than most."""
    length = rounds.accepted / rounds.rounds
    times = np.where(length > np.median(length), 3, 1)
    names = ("rounds", "drafted", "histogram", "lengths", "exhausted")
    longer = {}
    for name in names:
        values = getattr(rounds, name)
        longer[name] = values * (times if values.ndim == 1 else times[:, None])
    return replace(rounds, **longer)


def _known(rounds: Rounds) -> Independence:
    return independence_of(rounds, own_units(len(rounds.request)))


def test_length_that_goes_with_ease_is_seen() -> None:
    known = _known(_long_if_easy(_rounds(60)))
    assert known.length_correlation is not None and known.length_correlation > 0.4
    assert known.length_goes_with_ease
    assert not _known(_long_if_easy(_rounds(200))).length_goes_with_ease


def test_length_by_chance_is_not() -> None:
    seen = [_known(_rounds(60, seed)).length_goes_with_ease for seed in range(40)]
    assert sum(seen) <= 4


def test_too_few_clusters_have_no_correlation() -> None:
    assert _known(_rounds(2)).length_correlation is None
