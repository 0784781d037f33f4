"""Two kinds of rounds compared inside each request."""

from __future__ import annotations

import numpy as np
import pytest

from driftscope.analysis.statistics.strata import Halves, within_requests

RANDOM = np.random.default_rng(5)


def halves(kept: float, *, requests: int = 40, harder: float = 0.0) -> Halves:
    """Return requests of which the second kind keeps this share; those with more rounds of the
    second kind accept less of both kinds by `harder`."""
    rounds = RANDOM.integers(5, 40, (requests, 2)).astype(float)
    share = rounds[:, 1] / rounds.sum(axis=1)
    rate = np.clip(0.6 - harder * share + 0.1 * RANDOM.standard_normal(requests), 0.02, 0.98)
    each = np.column_stack([rate, rate * kept])
    accepted = RANDOM.binomial(rounds.astype(int) * 4, each) * 1.0
    code = np.arange(requests)
    return Halves(accepted=accepted, rounds=rounds, request=code, cluster=code)


def test_the_share_kept_is_that_of_the_truth() -> None:
    found = within_requests(halves(0.5, requests=400), "rest", "json")
    assert found is not None
    assert found.kept == pytest.approx(0.5, abs=0.03)
    assert found.kept_interval is not None
    assert found.kept_interval.low < 0.5 < found.kept_interval.high
    assert found.p is not None
    assert found.p < 1e-6
    assert (found.first, found.second, found.requests) == ("rest", "json", 400)


def test_requests_that_hold_much_of_it_and_are_harder_are_not_blamed_on_it() -> None:
    data = halves(1.0, requests=400, harder=0.5)
    pooled = data.accepted.sum(axis=0) / data.rounds.sum(axis=0)
    found = within_requests(data, "rest", "json")
    assert found is not None
    assert pooled[1] / pooled[0] < 0.9
    assert found.kept == pytest.approx(1.0, abs=0.04)


def test_requests_with_one_kind_only_say_nothing() -> None:
    data = halves(0.5)
    rounds = data.rounds.copy()
    rounds[:, 1] = 0
    one = Halves(accepted=data.accepted, rounds=rounds, request=data.request, cluster=data.cluster)
    assert within_requests(one, "rest", "json") is None


def test_a_kind_that_accepts_nothing_is_tested_exactly() -> None:
    found = within_requests(halves(0.0), "rest", "json")
    assert found is not None
    assert found.kept == 0.0
    assert found.p == 0.0
    assert found.kept_interval is not None
    assert 0.0 < found.kept_interval.high < 0.1


def test_one_request_shows_no_spread() -> None:
    found = within_requests(halves(0.5, requests=1), "rest", "json")
    assert found is not None
    assert found.kept_interval is None
    assert found.p is None
