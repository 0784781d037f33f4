"""The cost by context: flat, growing and falling; which points miss the goal."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cuda.overhead import (
    by_context,
    context_lines,
    device_events,
    over_goal,
    points,
    summary,
)

REPEATS = 7


def record(context: int, added_s: float, concurrency: int = 1) -> dict[str, Any]:
    """Repeats that jitter by 10 us about 10 ms, and settings that add to them."""
    absent = [0.010 + 1e-5 * (i % 3) for i in range(REPEATS)]
    probe = [a + added_s + 1e-6 * i for i, a in enumerate(absent)]
    tpot = {"absent": absent, "off": absent, "default": absent, "every round": probe}
    return {
        "concurrency": concurrency,
        "context": context,
        "tpot_s": tpot,
        "tokens_per_s": {name: [1 / t for t in values] for name, values in tpot.items()},
    }


@pytest.mark.parametrize(
    ("least_s", "most_s", "growth"),
    [(5e-4, 5e-4, "flat"), (1e-4, 5e-4, "grows"), (5e-4, 1e-4, "falls")],
)
def test_cost_by_context(least_s: float, most_s: float, growth: str) -> None:
    records = [record(8000, most_s), record(4000, 9.0), record(1000, least_s)]
    rows = {row["setting"]: row for row in by_context(records)}
    assert rows["every round"]["growth"] == growth
    assert rows["every round"]["contexts"] == (1000, 8000)
    assert rows["off"]["growth"] == "flat"
    assert any(f"every round  {growth}" in line for line in context_lines(records))


def test_one_context_says_nothing_of_growth() -> None:
    assert list(by_context([record(1000, 0.0, 1), record(1000, 0.0, 4)])) == []


def test_a_point_misses_the_goal_only_with_its_whole_interval() -> None:
    assert over_goal([record(1000, 2e-4)]) == ["every round at 1 x 1000"]
    assert over_goal([record(1000, 5e-5)]) == []


def test_throughput_stands_below_tpot() -> None:
    tpot, tokens = points([record(1000, 1e-3)])
    assert "every round 1.1" in tpot
    assert "every round 0.9" in tokens
    old = record(1000, 1e-3)
    del old["tokens_per_s"]
    assert len(list(points([old]))) == 1


def _event(name: str, at: float, took: float, cat: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": took}


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    """Three recorded rounds; each enters twice, and the target's kernel lies in between."""
    events: list[dict[str, Any]] = [_event("cudaLaunchKernel", 1.0, 5.0, "cuda_runtime")]
    for first in (0.0, 100.0, 200.0):
        events += [
            _event("target", first + 1, 50.0),
            _event("enter_forward", first + 60, 2.0),
            _event("enter_forward", first + 70, 3.0),
            _event("_partial", first + 80, 4.0),
        ]
    path = tmp_path / "timeline.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [*reversed(events), {"ph": "i", "name": "enter_forward"}]}, file)
    return path


def test_the_probes_kernels_are_summed_by_round(timeline: Path) -> None:
    found = summary(device_events(timeline))
    assert found["rounds"] == 2
    assert found["us_per_round"] == {
        "enter_forward": {"launches": 2.0, "us": 5.0},
        "_partial": {"launches": 1.0, "us": 4.0},
    }


def test_one_round_is_shown_from_the_masses_before_to_its_own(timeline: Path) -> None:
    shown = summary(device_events(timeline))["one_round"]
    assert shown[:4] == [
        ["target", 0.0, 50.0],
        ["enter_forward", 59.0, 2.0],
        ["enter_forward", 69.0, 3.0],
        ["_partial", 79.0, 4.0],
    ]
