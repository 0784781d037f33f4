"""Tokens per round at a smaller K, in two worlds: what decides is the depth, or the text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.simulate import Truth, simulate

from driftscope.analysis.cost import isotonic
from driftscope.analysis.summary.computation import recut
from driftscope.analysis.time_per_token import length_at, length_warnings, round_lengths
from driftscope.pipeline import summarise

K = 7


def test_where_the_depth_decides_chains_are_cut_off(tmp_path: Path) -> None:
    truth = Truth(k=K, requests=200, rounds=50)
    run = summarise(simulate(tmp_path / "run", truth), "run")
    tokens = round_lengths(run)
    for k in range(1, K + 1):
        wanted = 1 + truth.marginal()[:k].sum()
        assert tokens[k].value == pytest.approx(wanted, rel=0.035)


def _matches(requests: int, tokens: int) -> np.ndarray:
    """Whether the drafter guesses each token, [requests, tokens]: easy and hard stretches."""
    random = np.random.RandomState(1)
    state = random.standard_normal(requests)
    hits = np.empty((requests, tokens), dtype=np.bool_)
    for at in range(tokens):
        state = 0.9 * state + np.sqrt(1 - 0.9**2) * random.standard_normal(requests)
        hits[:, at] = random.random_sample(requests) < 1 / (1 + np.exp(-(0.8 + 1.6 * state)))
    return hits


def _rounds(matches: np.ndarray, k: int) -> list[int]:
    """Return the tokens accepted in each round of K = `k` over one request."""
    accepted, at = [], 0
    while at + k < len(matches):
        miss = np.flatnonzero(~matches[at : at + k])
        accepted.append(int(miss[0]) if len(miss) else k)
        at += accepted[-1] + 1
    return accepted


def test_where_the_text_decides_rounds_are_cut_anew() -> None:
    runs, served = [], {k: [] for k in range(1, K + 1)}
    for request, matches in enumerate(_matches(200, 300)):
        for k in served:
            served[k] += _rounds(matches, k)
        left = 0
        for accepted in _rounds(matches, K):
            left += accepted + (accepted == K)
            if accepted < K:
                runs.append((request, left, 1))
                left = 0
    cluster, length, missed = (np.array(column) for column in zip(*runs, strict=True))
    lengths = recut(cluster, length, missed, np.ones_like(length), k=K)
    counts = np.bincount(served[K], minlength=K + 1)
    marginal = (counts[::-1].cumsum()[::-1][1:] / counts.sum()).tolist()
    for k in range(1, K):
        wanted = 1 + np.mean(served[k])
        assert length_at(k, marginal, None, lengths).value == pytest.approx(wanted, rel=0.02)
    assert length_at(2, marginal).value < 0.96 * (1 + np.mean(served[2]))


def test_each_k_takes_its_length_from_the_run_with_the_nearest_larger_k(tmp_path: Path) -> None:
    """The easy prompts of the run at K = 3 show in K up to 3 only."""
    hard = Truth(k=K, requests=60, rounds=20)
    easy = replace(hard, k=3, conditional=(0.95,) * K)
    runs = [
        summarise(simulate(tmp_path / f"{each.k}", each), f"K = {each.k}") for each in (hard, easy)
    ]
    together, alone = round_lengths(runs[0], runs[1:]), round_lengths(runs[0])
    assert [a == b for a, b in zip(together, alone, strict=True)] == [
        True,
        *[False] * 3,
        *[True] * 4,
    ]
    assert (together[3].bias, together[2].bias > 0) == (0.0, True)
    (warning,) = length_warnings(runs[0], runs[1:])
    assert warning.startswith("K = 3 yields") and warning.endswith("send both the same prompts")
    assert length_warnings(runs[0], ()) == ()


def test_acceptance_that_differs_by_batch_size_is_told(tmp_path: Path) -> None:
    truth = Truth(k=4, requests=240, rounds=30, batches=(1, 16), batch=-0.4)
    run = summarise(simulate(tmp_path / "run", truth), "run")
    (warning,) = length_warnings(run, ())
    assert warning.startswith("the acceptance length differs by batch size, from ")


def test_it_is_that_of_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize", minversion=None)
    if not hasattr(optimize, "isotonic_regression"):
        pytest.skip("scipy before 1.12")
    values, weights = [3.0, 1.0, 2.0, 5.0, 4.0, 4.5], [1.0, 2.0, 0.5, 1.0, 3.0, 1.0]
    other = optimize.isotonic_regression(values, weights=weights).x
    assert isotonic(values, weights) == pytest.approx(other.tolist())
