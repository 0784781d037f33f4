"""Sums of a file pass through a manifest unchanged; what no driftscope writes is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driftscope.analysis.replays.file_totals import FileTotals, to_workload, totals_of
from driftscope.analysis.statistics.intervals.interval import Interval

WHOLE = FileTotals(
    condition="chat",
    period="this run",
    k=3,
    rounds=200,
    accepted=300,
    mean_length=2.5,
    mean_length_interval=Interval(low=2.0, high=3.0),
    marginal=(0.75, 0.5, 0.25),
    ttft_s=0.04,
)
LITTLE = FileTotals(condition="math", period="last log interval", mean_length=2.0)


def _workload(totals: Any) -> dict[str, Any]:
    workload: dict[str, Any] = json.loads(json.dumps({"ingested": {"totals": totals}}))
    return workload


def test_sums_are_read_as_they_were_written() -> None:
    assert totals_of(_workload(to_workload([WHOLE, LITTLE]))) == (WHOLE, LITTLE)


@pytest.mark.parametrize("workload", [{}, {"ingested": {}}, {"ingested": "x"}, {"suite": {}}])
def test_another_replay_has_none(workload: dict[str, Any]) -> None:
    assert totals_of(workload) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"condition": "a"},
        {"condition": "a", "period": "b", "rounds": -1},
        {"condition": "a", "period": "b", "rounds": 1.5},
        {"condition": "a", "period": "b", "marginal": [0.5, 1.5]},
        {"condition": "a", "period": "b", "mean_length": 1e9},
    ],
    ids=str,
)
def test_what_no_driftscope_writes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"totals\.0"):
        totals_of(_workload([wrong]))
