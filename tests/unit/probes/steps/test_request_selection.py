"""Workload labels come from whoever may send a request: what is kept of them is bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from driftscope.boundary.bounds import MAX_LABEL_CHARS
from driftscope_probes.sampler import REMEMBERED_LABELS, RequestSelection
from driftscope_probes.vllm.schedule import LABEL, VllmSchedules, label_of

LONG = 105_000
"""Characters of a label that one HTTP request can carry."""


def _labels(requests: Iterable[Any]) -> Iterable[tuple[str, str]]:
    """The labels of new requests, as a schedule of vLLM has them."""
    return VllmSchedules().labels(SimpleNamespace(scheduled_new_reqs=requests))


def _request(name: str, label: Any) -> Any:
    return SimpleNamespace(req_id=name, sampling_params=_sampling(label))


def _sampling(label: Any) -> Any:
    return SimpleNamespace(extra_args={LABEL: label})


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        (None, None),
        ("", ""),
        ("chat", "chat"),
        (7, "7"),
        ("x" * MAX_LABEL_CHARS, "x" * MAX_LABEL_CHARS),
        ("x" * (MAX_LABEL_CHARS + 1), "x" * MAX_LABEL_CHARS),
        (["y" * LONG], "['" + "y" * (MAX_LABEL_CHARS - 2)),
    ],
    ids=["none", "empty", "short", "number", "longest", "too-long", "list"],
)
def test_a_label_is_cut(label: Any, kept: str | None) -> None:
    assert label_of(_sampling(label)) == kept


def test_long_labels_cost_little_memory() -> None:
    selection = RequestSelection(["x"])
    tracemalloc.start()
    try:
        for number in range(2000):
            selection.learn(_labels([_request(f"r{number}", f"{number}" + "x" * LONG)]))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 << 20, f"{kept:,} bytes for 2,000 labels"


def test_so_many_labels_are_remembered() -> None:
    selection = RequestSelection(["a"])
    selection.learn(_labels(_request(f"r{n}", "a") for n in range(REMEMBERED_LABELS + 1)))
    chosen = selection.chosen(["r0", "r1", f"r{REMEMBERED_LABELS}"])
    assert chosen is not None and chosen.tolist() == [False, True, True]


def test_a_long_label_is_chosen_by_what_is_kept_of_it() -> None:
    selection = RequestSelection(["x" * MAX_LABEL_CHARS])
    selection.learn(_labels([_request("r", "x" * LONG)]))
    chosen = selection.chosen(["r", "another"])
    assert chosen is not None and chosen.tolist() == [True, False]
    assert selection.selects(label_of(_sampling("x" * LONG)))
