"""Acceptance formulas: identities, and every published vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from driftscope.metrics import acceptance

PUBLISHED = json.loads((Path(__file__).parent / "data" / "acceptance.json").read_text())
ROUNDED = 0.006
"""Published means are rounded to two or three digits, and so is each rate that they are summed
of."""

rounds = st.integers(1, 12).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.integers(0, k), min_size=1, max_size=200))
)


def _marginal(vector: dict[str, Any]) -> tuple[float, ...]:
    """Marginal rates of a published vector, from counts or a histogram where it has them."""
    if "per_pos_counts" in vector:
        return acceptance.marginal_rates(vector["per_pos_counts"], vector["num_drafts"])
    if "accepted_histogram" in vector:
        histogram = vector["accepted_histogram"]
        return acceptance.marginal_rates(acceptance.counts_of(histogram), sum(histogram))
    return tuple(vector["marginal_accept_rates"])


def _histogram(accepted: list[int], k: int) -> NDArray[np.int64]:
    """Return the number of rounds with exactly 0, 1 .. k tokens accepted, [k + 1]."""
    return np.bincount(accepted, minlength=k + 1)


@pytest.mark.parametrize("vector", PUBLISHED, ids=[v["id"] for v in PUBLISHED])
def test_published_mean_length_is_one_plus_the_marginals(vector: dict[str, Any]) -> None:
    marginal = _marginal(vector)
    assert len(marginal) == vector["num_spec_tokens"]
    reported = vector["reported_mean_acceptance_length"]
    assert acceptance.mean_length_of(marginal) == pytest.approx(reported, abs=ROUNDED)


@pytest.mark.parametrize(
    "vector",
    [v for v in PUBLISHED if "per_pos_counts" in v],
    ids=lambda v: str(v["id"]),
)
def test_published_counts_give_the_published_rates(vector: dict[str, Any]) -> None:
    assert _marginal(vector) == pytest.approx(vector["marginal_accept_rates"], abs=0.0006)


@pytest.mark.parametrize(
    "vector", [v for v in PUBLISHED if "reported_rate" in v], ids=lambda v: str(v["id"])
)
def test_published_token_rate(vector: dict[str, Any]) -> None:
    if "accepted" in vector:
        rate = acceptance.token_rate(vector["accepted"], vector["drafted"])
    else:
        marginal = _marginal(vector)
        rate = acceptance.token_rate(sum(marginal), len(marginal))
    assert rate == pytest.approx(vector["reported_rate"], abs=0.0006)


def test_rates_called_conditional_on_a_card_are_marginal() -> None:
    card = next(v for v in PUBLISHED if v["id"].startswith("k-l-lambda"))
    printed = card["marginal_accept_rates"]
    as_marginal = acceptance.mean_length_of(printed)
    as_conditional = acceptance.mean_length_of(tuple(np.cumprod(printed)))
    assert as_marginal == pytest.approx(card["reported_mean_acceptance_length"], abs=ROUNDED)
    assert abs(as_conditional - card["reported_mean_acceptance_length"]) > 0.2


@given(rounds)
def test_mean_length_equals_one_plus_the_marginals(drawn: tuple[int, list[int]]) -> None:
    k, accepted = drawn
    counts = acceptance.counts_of(_histogram(accepted, k))
    marginal = acceptance.marginal_rates(counts, len(accepted))
    length = acceptance.mean_length(sum(accepted), len(accepted))
    assert acceptance.mean_length_of(marginal) == pytest.approx(length)
    assert 1.0 <= length <= k + 1


@given(rounds)
def test_conditional_rates_multiply_to_the_marginal_ones(drawn: tuple[int, list[int]]) -> None:
    k, accepted = drawn
    counts = acceptance.counts_of(_histogram(accepted, k))
    at_risk = np.append(len(accepted), counts)[:-1]
    marginal = acceptance.marginal_rates(counts, len(accepted))
    assert acceptance.running_product(counts, at_risk) == pytest.approx(marginal)
    rates = acceptance.risk_set_rates(counts, at_risk)
    assert [rate is None for rate in rates] == [not of for of in at_risk.tolist()]


@given(rounds)
def test_counts_are_rounds_with_at_least_that_many(drawn: tuple[int, list[int]]) -> None:
    k, accepted = drawn
    counts = acceptance.counts_of(_histogram(accepted, k))
    assert counts.tolist() == [sum(a >= i for a in accepted) for i in range(1, k + 1)]


def test_nothing_drafted_has_no_token_rate() -> None:
    assert acceptance.token_rate(0, 0) is None


@given(rounds)
def test_lengths_by_token_are_never_less_than_by_round(drawn: tuple[int, list[int]]) -> None:
    k, accepted = drawn
    histogram = _histogram(accepted, k)
    by_token = acceptance.mean_length_by_token(histogram)
    tokens = [a + 1 for a in accepted for _ in range(a + 1)]
    assert by_token == pytest.approx(np.mean(tokens))
    assert by_token >= acceptance.mean_length(sum(accepted), len(accepted)) - 1e-9


def test_each_request_counts_once() -> None:
    assert acceptance.mean_length_by_request([10, 0, 0], [10, 90, 0]) == pytest.approx(1.5)
    assert acceptance.mean_length_by_request([], []) is None


@given(rounds)
def test_counts_of_rounds_fit_together(drawn: tuple[int, list[int]]) -> None:
    k, accepted = drawn
    histogram = _histogram(accepted, k)
    acceptance.check_identities(histogram, len(accepted), k)
    with pytest.raises(ValueError, match="does not hold all"):
        acceptance.check_identities(histogram, len(accepted) + 1, k)
