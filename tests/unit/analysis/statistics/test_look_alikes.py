"""Requests that look like repetitions of one prompt are found, and chance agreement is not."""

from __future__ import annotations

import numpy as np

from driftscope.analysis.statistics.look_alikes import look_alikes

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


def test_too_few_repetitions_are_none() -> None:
    beginning = np.arange(N)
    beginning[1] = beginning[0]
    assert look_alikes(ONE_LABEL, np.zeros(N, dtype=np.int64), beginning) is None


def test_requests_of_unknown_beginning_stay_alone() -> None:
    prompt = np.arange(N) % 30
    beginning = np.where(np.arange(N) < 60, 1000 + prompt, -1)
    group = look_alikes(ONE_LABEL, prompt, beginning)
    assert group is not None
    assert len(np.unique(group)) == 30 + 60
