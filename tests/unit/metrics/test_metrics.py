"""Fallback, latency, growth, overhead, speed by K, and the definitions."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.analysis.query.query_engine import DuckDB
from driftscope.metrics import acceptance
from driftscope.metrics.attention import (
    even_share,
    layer_means,
    over_layers,
    ratio,
    sink_retention,
    visible_sink,
    weight_of,
    weighted,
)
from driftscope.metrics.catalogue import DEFINITIONS
from driftscope.metrics.confidence import calibration_error
from driftscope.metrics.fallback import UNKNOWN, effective_k, fallback
from driftscope.metrics.hidden import growth, imbalance
from driftscope.metrics.latency import (
    all_in,
    cost_of,
    inter_token_s,
    life_s,
    mean_s,
    overhead_fraction,
)
from driftscope.vocabulary import UndraftedReason


def evaluate(metric: Callable[[Any], Any], **columns: list[Any]) -> list[Any]:
    """Return the value of `metric` in each row of a table of `columns`; an aggregate gives one."""
    rows = pa.table({"row": list(range(len(next(iter(columns.values()))))), **columns})
    engine = DuckDB()
    engine.view("columns", rows, rows.schema)
    table = ibis.table(ibis.Schema.from_pyarrow(rows.schema), name="columns")
    value = metric(table)
    literal = not hasattr(value, "as_table")
    if not literal and value.op().shape.is_scalar():
        return engine.rows(table.aggregate(value=value)).column("value").to_pylist()
    found = engine.rows(table.select("row", value=value).order_by("row"))
    return found.column("value").to_pylist()


def test_rejected_and_undrafted_are_two_shares_of_all_steps() -> None:
    found = fallback(3, 8, {"k_zero": 1, "no_draft": 1})
    assert (found.steps, found.rejected_share, found.undrafted_share) == (10, 0.3, 0.2)
    assert found.by_reason == {"k_zero": 1, "no_draft": 1}
    assert found.deliberate == 1


@given(
    st.integers(0, 50), st.integers(0, 50), st.lists(st.sampled_from([None, *UndraftedReason.ALL]))
)
def test_every_undrafted_step_has_a_reason(
    rejected: int, accepted: int, reasons: list[str | None]
) -> None:
    found = fallback(rejected, rejected + accepted, Counter(reasons))
    assert sum(found.by_reason.values()) == found.undrafted == len(reasons)
    assert found.steps == rejected + accepted + len(reasons)
    assert found.by_reason.get(UNKNOWN, 0) == reasons.count(None)


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        (mean_s([1.0, math.nan, 3.0]), 2.0),
        (mean_s([math.nan]), None),
        (mean_s([]), None),
        (growth((4.0, 5.0, 10.0)), 2.5),
        (growth((0.0, 1.0)), None),
        (growth((1.0, math.nan)), None),
        (overhead_fraction(0.01, 0.02, 3.0), 0.01),
        (overhead_fraction(0.01, 0.02, 3.0, 0.03), 0.02),
        (overhead_fraction(0.01, 0.02, 0.0), None),
        (imbalance((1.0, 4.0, 9.0)), 9.0),
        (imbalance((1.0, 1.0)), 1.0),
        (imbalance((1.0,)), None),
        (imbalance(None), None),
        (imbalance((1.0, 0.0)), None),
        (calibration_error([10, 30], [6.0, 27.0], [4.0, 24.0]), 0.125),  # off by 0.2 and 0.1
        (calibration_error([], [], []), None),
        (inter_token_s([1.0, 2.0], [2, 4]), 1.75),  # it weighs tokens, not requests
        (inter_token_s([1.0, math.nan], [1, 5]), None),
        (effective_k(7 * 3, 4), 5.25),
        (effective_k(0, 0), None),
        (all_in([]), None),
        (all_in([cost_of("worker0-1", 1.0, 0.0)]), None),  # no steps
        (acceptance.token_rate(0, 0), None),
        (acceptance.mean_length_by_request([10, 0, 0], [10, 90, 0]), 1.5),
        (acceptance.mean_length_by_request([], []), None),
    ],
)
def test_a_figure_by_hand(figure: float | None, value: float | None) -> None:
    assert figure == (value and pytest.approx(value))


def test_means_leave_out_what_is_no_number() -> None:
    nan, inf = math.nan, math.inf
    rows = {"value": [1.0, inf, nan, None, 4.0], "weight": [1.0, 1.0, 1.0, 1.0, 2.0]}
    (top,) = evaluate(lambda t: weighted(t.value, t.weight), **rows)
    (bottom,) = evaluate(lambda t: weight_of(t.value, t.weight), **rows)
    assert (top, bottom) == (9.0, 3.0)
    assert ratio(np.array([top, 0.0]), np.array([bottom, 0.0])) == pytest.approx(
        [3.0, nan], nan_ok=True
    )


def test_every_definition_says_all_it_must() -> None:
    for name, definition in DEFINITIONS.items():
        assert definition.name == name
        for words in (definition.title, definition.unit, definition.range, definition.source):
            assert words
        assert definition.meaning.endswith(".")
        assert definition.meaning.count(". ") <= 1, f"{name}: one or two sentences"


def test_the_sink_is_compared_with_its_mass_at_depth_1() -> None:
    assert sink_retention((0.5, 0.45, 0.1)) == pytest.approx((1.0, 0.9, 0.2))
    assert all(math.isnan(item) for item in sink_retention((0.0, 0.0, 0.0)))


def test_a_request_lives_from_its_arrival_to_its_last_token() -> None:
    lives = life_s([0.5, 0.5, math.nan], [0.1, math.nan, 0.1], [11, 1, 11])
    assert lives[:2] == pytest.approx([1.5, 0.5])
    assert math.isnan(lives[2])


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        (("worker0-1", 0.02, 0.01, 1.0), ("engine0-2", 0.003, 0.002), 0.035),
        (("worker0-1", 0.02, 0.01, 1.0), ("worker1-2", 0.05, 0.0, 0.9), 0.06),
        (("worker0-1", 0.01, 0.0, 1.0), ("worker0.dp1-2", 0.03, 0.0, 1.0), 0.02),
    ],
    ids=["hooks and writers over the steps", "the slowest of ranks", "replicas add up"],
)
def test_all_in_overhead(first: tuple[Any, ...], second: tuple[Any, ...], share: float) -> None:
    assert all_in([cost_of(*first), cost_of(*second)]) == pytest.approx(share)


def test_even_share_is_slots_over_context() -> None:
    found = evaluate(lambda t: even_share(t.position, t.slots), position=[9, 0], slots=[2, 4])
    assert found == [pytest.approx(0.2), 1.0]


def test_a_layer_to_which_a_class_does_not_apply_is_no_zero() -> None:
    nan = float("nan")
    found = evaluate(lambda t: over_layers([t.a, t.b]), a=[0.4, nan, 0.2], b=[nan, nan, 0.4])
    assert found == [0.4, None, pytest.approx(0.3)]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [((0, 4, 50), [1, 1, 2, 3]), ((), [0, 0, 0, 0]), ((0, 1), [1, 2, 2, 2])],
)
def test_a_sink_counts_as_far_as_it_is_in_the_context(
    slots: tuple[int, ...], expected: list[int]
) -> None:
    found = evaluate(lambda t: visible_sink(t.position, slots), position=[0, 3, 4, 99])
    assert found == expected


def test_a_serving_process_averages_over_the_same_layers() -> None:
    assert layer_means(np.array([[[0.4, np.nan], [np.nan, np.nan]]])) == pytest.approx(
        np.array([[0.4, np.nan]]), nan_ok=True
    )


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


@pytest.mark.parametrize("vector", PUBLISHED, ids=[v["id"] for v in PUBLISHED])
def test_published_rates_and_mean_lengths_fit_together(vector: dict[str, Any]) -> None:
    marginal = _marginal(vector)
    assert len(marginal) == vector["num_spec_tokens"]
    reported = vector["reported_mean_acceptance_length"]
    assert acceptance.mean_length_of(marginal) == pytest.approx(reported, abs=ROUNDED)
    if "per_pos_counts" in vector:
        assert marginal == pytest.approx(vector["marginal_accept_rates"], abs=0.0006)
    if "reported_rate" in vector:
        counts = vector.get("accepted", sum(marginal)), vector.get("drafted", len(marginal))
        assert acceptance.token_rate(*counts) == pytest.approx(vector["reported_rate"], abs=0.0006)


def test_rates_called_conditional_on_a_card_are_marginal() -> None:
    card = next(v for v in PUBLISHED if v["id"].startswith("k-l-lambda"))
    printed = card["marginal_accept_rates"]
    as_marginal = acceptance.mean_length_of(printed)
    as_conditional = acceptance.mean_length_of(tuple(np.cumprod(printed)))
    assert as_marginal == pytest.approx(card["reported_mean_acceptance_length"], abs=ROUNDED)
    assert abs(as_conditional - card["reported_mean_acceptance_length"]) > 0.2


@given(rounds)
def test_identities_of_counts_rates_and_lengths(drawn: tuple[int, list[int]]) -> None:
    k, accepted = drawn
    n, histogram = len(accepted), np.bincount(accepted, minlength=k + 1)
    counts = acceptance.counts_of(histogram)
    assert counts.tolist() == [sum(a >= i for a in accepted) for i in range(1, k + 1)]
    marginal = acceptance.marginal_rates(counts, n)
    length = acceptance.mean_length(sum(accepted), n)
    assert acceptance.mean_length_of(marginal) == pytest.approx(length)
    assert 1.0 <= length <= k + 1
    at_risk = np.append(n, counts)[:-1]
    assert acceptance.running_product(counts, at_risk) == pytest.approx(marginal)
    rates = acceptance.risk_set_rates(counts, at_risk)
    assert [rate is None for rate in rates] == [not of for of in at_risk.tolist()]
    by_token = acceptance.mean_length_by_token(histogram)
    assert by_token == pytest.approx(np.mean([a + 1 for a in accepted for _ in range(a + 1)]))
    assert by_token >= length - 1e-9
    acceptance.check_identities(histogram, n, k)
    with pytest.raises(ValueError, match="does not hold all"):
        acceptance.check_identities(histogram, n + 1, k)
