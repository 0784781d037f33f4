"""The part of a process in a run of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from driftscope.trace.ranks import Place, place_of
from driftscope_probes.process_writer import role_of
from driftscope_probes.settings import RUN_ID
from driftscope_probes.vllm.support import is_last_stage, place_in, run_id_of


def _config(**parallel: int) -> Any:
    return SimpleNamespace(parallel_config=SimpleNamespace(**parallel), instance_id="17")


@pytest.mark.parametrize(
    ("parallel", "place", "role"),
    [
        ({}, Place(), "worker0"),
        ({"tensor_parallel_size": 2, "rank": 1}, Place(rank=1), "worker1"),
        ({"data_parallel_index": 0, "rank": 0}, Place(), "worker0"),
        ({"data_parallel_index": 3}, Place(replica=3), "worker0.dp3"),
        (
            {"tensor_parallel_size": 4, "rank": 2, "data_parallel_index": 1},
            Place(rank=2, replica=1),
            "worker2.dp1",
        ),
        ({"pipeline_parallel_size": 2, "rank": 1}, Place(), "worker0"),
    ],
)
def test_a_worker_is_called_what_the_reader_takes_it_for(
    parallel: dict[str, int], place: Place, role: str
) -> None:
    assert (place_in(_config(**parallel)), role_of(place)) == (place, role)
    assert place_of(f"{role}-4711") == place


def test_the_last_pipeline_stage_drafts() -> None:
    stages = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    assert [is_last_stage(_config(**stages, rank=rank)) for rank in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert is_last_stage(_config())


def test_a_run_is_of_one_start_of_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_ID, "abc")
    one, other = _config(), _config()
    other.instance_id = "18"
    assert run_id_of(one) == run_id_of(_config()) == "abc-17"
    assert run_id_of(other) == "abc-18"
    one.instance_id = "17_dp1"
    assert run_id_of(one) == "abc-17", "Ray's name for a replica"
    monkeypatch.setenv(RUN_ID, "abd")
    assert run_id_of(other) == "abd-18"
