"""Sums over the probe's kernels in a worker's timeline."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cuda.timeline import device_events, summary


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
