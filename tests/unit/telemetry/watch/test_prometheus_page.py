"""A page of metrics read back says what it said, or which sample cannot be right."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from driftscope.boundary.bounds import MAX_COUNT, MAX_K
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.tally import Tally
from driftscope.telemetry.export.scrape import families
from driftscope.telemetry.watch.engine_view import view
from driftscope.telemetry.watch.prometheus_page import BadPageError, points_on

K = "driftscope_draft_tokens_configured"


def _page(tally: Tally) -> str:
    """Return the page as the engine's own endpoint writes it."""

    class Collector:
        def collect(self):  # type: ignore[no-untyped-def]
            constants = {i.MODEL: 'a "model"\\', i.DRAFTER: "d", i.ENGINE: "vllm"}
            yield from families([([(None, tally.snapshot())], constants)])

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry).decode()


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=200),
    st.integers(0, MAX_K),
    st.lists(st.floats(0, 1e6), max_size=20),
)
def test_what_our_own_endpoint_writes(reason: str, k: int, lengths: list[float]) -> None:
    tally = Tally()
    tally.add(i.ROUNDS, 12)
    tally.add(i.UNDRAFTED_STEPS, 3, reason=reason)
    tally.add(i.REACHED, 5, depth=2)
    tally.set(i.CONFIGURED_K, k)
    tally.observe(i.LENGTH, lengths)
    found = points_on(_page(tally))
    expected = tally.snapshot()
    assert found.keys() == expected.keys()
    for key, point in found.items():
        assert point.value == pytest.approx(expected[key].value)
        assert point.count == expected[key].count


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{K} NaN", f"{K}: NaN, not a finite number"),
        (f"{K} -Inf", "not a finite number"),
        (f"{K} {MAX_K + 1}", f"not a number of tokens from 0 to {MAX_K}"),
        (f"{K} 2.5", "not a number of tokens"),
        (f"{K} -1", "not a number of tokens"),
        (f"{K} many", "many, not a number"),
        (f"{K}", "a line that is not a sample"),
        (f"driftscope_rounds_total {2 * MAX_COUNT}", "not a finite number up to"),
        ("driftscope_rounds_total -1", "a count is 0 or more"),
        ('driftscope_rounds_reached_total{driftscope_depth="1} 2', "a line that is not a sample"),
        ("driftscope_acceptance_length_sum 3", "a histogram without a bucket"),
    ],
)
def test_a_sample_that_cannot_be_right(line: str, words: str) -> None:
    with pytest.raises(BadPageError, match=words):
        points_on(f"driftscope_rounds_total 10\n{line}\n")


def test_what_others_say_is_passed_over() -> None:
    page = "vllm:num_requests NaN\ndriftscope_of_next_year{a=1} x\n# TYPE a b\n\n\x00\n"
    assert points_on(page) == {}


def test_a_page_of_the_greatest_depth_is_seen_at_once() -> None:
    tally, k = Tally(), MAX_K
    tally.set(i.CONFIGURED_K, k)
    tally.add(i.ROUNDS, 10)
    masses = np.full((3, k), 0.25)
    for name in ("sink", "prompt", "generated", "self"):
        tally.observe_depths(i.MASS, masses, **{"class": name})
    for place in ("in", "prenorm", "postnorm", "fed"):
        tally.observe_depths(i.RMS, masses, place=place)
    for depth in range(1, k + 1):
        tally.add(i.REACHED, 1, depth=depth)
        tally.add(i.AT_RISK, 2, depth=depth)
    page, begun = _page(tally), time.monotonic()
    seen = view(points_on(page))
    assert time.monotonic() - begun < 5
    assert len(seen.depths) == k and seen.depths[-1].masses["self"] == pytest.approx(0.25)
