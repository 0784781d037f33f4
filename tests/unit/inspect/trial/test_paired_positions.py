"""Equal drafters do not differ more often than the level allows, and a worse one is found."""

from __future__ import annotations

import numpy as np
import pytest

from driftscope.analysis.compare import LENGTH, MARGINAL, verdict
from driftscope.inspect.trial.paired_positions import BY_POSITION, compare_positions

K, PROMPTS = 5, 32
NAMES = "before", "after"
Drafts = list[list[int]]


def _drafts(source: np.random.Generator, rates: list[float], positions: list[int]) -> Drafts:
    return [
        (source.random((n, K)) < rate).cumprod(axis=1).sum(axis=1).tolist()
        for rate, n in zip(rates, positions, strict=True)
    ]


def _prompts(source: np.random.Generator) -> tuple[list[float], list[int]]:
    """Return prompts of unequal difficulty and length."""
    rates = np.clip(0.6 + source.normal(0, 0.15, PROMPTS), 0.05, 0.95)
    return rates.tolist(), source.integers(10, 60, PROMPTS).tolist()


def test_figures_are_those_of_all_positions() -> None:
    first, second = [[0, 2], [1, 1, 1]] * 3, [[2, 2], [1, 0, 1]] * 3
    found = compare_positions(first, second, 2, NAMES)
    (length,) = found.at(LENGTH)
    assert (length.first, length.second) == (2.0, pytest.approx(1 + 6 / 5))
    assert [each.first for each in found.at(MARGINAL)] == pytest.approx([4 / 5, 1 / 5])
    assert [each.second for each in found.at(MARGINAL)] == pytest.approx([4 / 5, 2 / 5])
    assert found.pairing == BY_POSITION


def test_the_same_drafts_do_not_differ() -> None:
    source = np.random.default_rng(1)
    drafts = _drafts(source, *_prompts(source))
    found = compare_positions(drafts, drafts, K, NAMES)
    assert not any(each.differs for each in found.differences)
    assert verdict(found).startswith("no difference is shown")


def test_drafters_of_equal_rates_rarely_differ() -> None:
    source, apart = np.random.default_rng(2), 0
    for _ in range(100):
        rates, positions = _prompts(source)
        first, second = (_drafts(source, rates, positions) for _ in range(2))
        found = compare_positions(first, second, K, NAMES)
        apart += any(each.differs for each in found.differences)
    assert apart <= 11  # 5 are expected; more than 11 happen once in 250 times


def test_a_worse_drafter_is_found_with_an_interval_that_holds_the_difference() -> None:
    source = np.random.default_rng(3)
    rates, positions = _prompts(source)
    worse = [0.8 * each for each in rates]
    found = compare_positions(
        _drafts(source, rates, positions), _drafts(source, worse, positions), K, NAMES
    )
    (length,) = found.at(LENGTH)
    assert length.differs and length.difference < 0
    assert found.parts_from == 1
    assert length.interval is not None
    assert length.interval.low < _gap(rates, worse, positions) < length.interval.high
    assert verdict(found).startswith("before accepts more")


def _gap(rates: list[float], worse: list[float], positions: list[int]) -> float:
    weights = np.array(positions) / sum(positions)
    lengths = [sum(np.array(each) ** d for d in range(1, K + 1)) for each in (worse, rates)]
    return float(weights @ (lengths[0] - lengths[1]))


def test_a_drafter_of_other_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="positions"):
        compare_positions([[1, 1]], [[1]], K, NAMES)
