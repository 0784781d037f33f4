"""Counts of a server are used only if they can be right."""

from __future__ import annotations

from typing import Any

import pytest

from driftscope.boundary.bounds import MAX_K, MAX_ROUNDS
from driftscope.workloads.client.answer import BrokenStreamError, Counts, counts_of


def test_tokens() -> None:
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1, "more": "x"},
    }
    assert counts_of(usage, None) == Counts(prompt_tokens=3, output_tokens=2, cached_tokens=1)
    assert counts_of({"prompt_tokens_details": None}, None) == Counts()
    assert counts_of(None, None) == counts_of({}, {}) == Counts()


def test_rounds_as_vllm_tells_them() -> None:
    detailed = {
        "per_step_accepted": [1, 0],
        "per_step_drafted": [4, 4],
        "acceptance_histogram": [1, 1, 0, 0, 0],
    }
    assert counts_of(None, detailed) == Counts(drafted=[4, 4], accepted=[1, 0])
    summary = {"acceptance_histogram": [2, 1, 0]}
    assert counts_of(None, summary) == Counts(accepted=[0, 0, 1])
    assert counts_of(None, {"acceptance_histogram": [0, 0]}) == Counts()


@pytest.mark.parametrize(
    ("usage", "speculation", "words"),
    [
        ([1], None, "dictionary"),
        ({"prompt_tokens": "3"}, None, "prompt_tokens: "),
        ({"completion_tokens": True}, None, "completion_tokens: "),
        ({"completion_tokens": -1}, None, "completion_tokens: "),
        ({"completion_tokens": 1 << 62}, None, "completion_tokens: "),
        ({"prompt_tokens_details": [1]}, None, "prompt_tokens_details: "),
        (None, "x", "dictionary"),
        (None, {"acceptance_histogram": "x"}, "acceptance_histogram: "),
        (None, {"acceptance_histogram": [-1, 2]}, "acceptance_histogram.0: "),
        (None, {"acceptance_histogram": [3_000_000_000, 1]}, "acceptance_histogram.0: "),
        (None, {"acceptance_histogram": [MAX_ROUNDS, 1]}, "more than 1,048,576 rounds"),
        (None, {"acceptance_histogram": [0] * (MAX_K + 2)}, "acceptance_histogram: "),
        (None, {"per_step_drafted": [MAX_K + 1]}, "per_step_drafted.0: "),
    ],
)
def test_what_cannot_be_right(usage: Any, speculation: Any, words: str) -> None:
    with pytest.raises(BrokenStreamError, match=words):
        counts_of(usage, speculation)
