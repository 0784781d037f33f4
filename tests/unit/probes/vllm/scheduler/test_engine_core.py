"""Requests that an engine core ends early: aborted ones, and those that run when it stops."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.runs import Spec, manifest

from driftscope.trace.reader import read_trace
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import Region
from driftscope_probes.settings import Settings
from driftscope_probes.vllm import schedule
from driftscope_probes.vllm.engine_core import EngineObserver

TEXTS = ("Well. ", "<tool_call>", '{"a": 1}', "</tool_call>")
CALL = [0, 1, 2, 3]


class Tokenizer:
    """A tokenizer of four whole words."""

    all_special_ids = ()

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(TEXTS[each] for each in ids)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [TEXTS[each] for each in ids]


class Request(SimpleNamespace):
    """vLLM's Request, as far as it is read."""

    def __init__(self, name: str, answer: list[int], ended: str | None = None) -> None:
        super().__init__(
            request_id=name,
            sampling_params=SimpleNamespace(extra_args=None, temperature=0.0, max_tokens=9),
            arrival_time=time.time(),
            prompt_token_ids=[0, 0],
            num_prompt_tokens=2,
            output_token_ids=answer,
            num_output_tokens=len(answer),
            ended=ended,
        )

    def is_finished(self) -> bool:
        return self.ended is not None

    def get_finished_reason(self) -> str | None:
        return self.ended


class Core:
    """An engine core with an observer, and no step."""

    def __init__(self, run: Path, **settings: Any) -> None:
        create_run(run, manifest(Spec()))
        self.run, self.requests = run, dict[str, Request]()
        speculation = SimpleNamespace(draft_model_config=SimpleNamespace(max_model_len=100))
        config = SimpleNamespace(
            speculative_config=speculation,
            parallel_config=SimpleNamespace(data_parallel_index=0, data_parallel_rank=0),
        )
        scheduler = SimpleNamespace(
            vllm_config=config,
            requests=self.requests,
            max_model_len=100,
            max_num_scheduled_tokens=64,
            num_spec_tokens=3,
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
            structured_output_manager=SimpleNamespace(tokenizer=Tokenizer()),
        )
        self.observer = EngineObserver(scheduler, Settings(trace=run, **settings))

    def add(self, *requests: Request) -> None:
        self.requests.update({each.request_id: each for each in requests})

    def rows(self) -> dict[str, dict[str, Any]]:
        """Close the trace and return the request rows by name."""
        self.observer.close()
        trace = read_trace(self.run)
        assert not [error for status in trace.statuses for error in status.errors]
        assert all(status.closed for status in trace.statuses)
        return {row["request"]: row for row in trace.request.to_pylist()}


def names(row: dict[str, Any]) -> list[str]:
    return [Region.ALL[code] for code in row["region_codes"]]


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return Core(tmp_path / "run")


def test_an_aborted_request_has_the_regions_of_what_it_answered(core: Core) -> None:
    core.observer.request_finished(Request("a", CALL[:3], "abort"))
    row = core.rows()["a"]
    assert names(row) == ["prose", "template", "json"]
    assert (row["region_starts"], row["region_boundaries"]) == ([0, 1, 2], [1])
    assert (row["finish_reason"], row["output_tokens"]) == ("abort", 3)


def test_a_request_that_runs_when_the_engine_stops_has_them_too(core: Core) -> None:
    core.add(Request("a", CALL), Request("b", []))
    rows = core.rows()
    assert names(rows["a"]) == ["prose", "template", "json", "template"]
    assert rows["b"]["region_starts"] == []
    assert {row["finish_reason"] for row in rows.values()} == {"abort"}


def test_a_request_that_ended_and_is_still_held_has_one_row(core: Core) -> None:
    """vLLM keeps a request whose blocks another engine still reads."""
    ended = Request("a", CALL, "stop")
    core.add(ended)
    core.observer.request_finished(ended)
    assert core.rows()["a"]["finish_reason"] == "stop"
    assert read_trace(core.run).request.num_rows == 1


def test_the_end_comes_once(core: Core) -> None:
    core.add(Request("a", CALL))
    core.observer.close()
    core.observer.close()
    assert read_trace(core.run).request.num_rows == 1


def test_regions_that_take_too_long_at_the_end_are_not_recorded(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are written nevertheless, because vLLM kills the process soon."""
    monkeypatch.setattr(schedule, "AT_END_S", -1.0)
    core.add(Request("a", CALL))
    row = core.rows()["a"]
    assert (row["region_starts"], row["region_codes"]) == (None, None)
    assert row["output_tokens"] == 4


def test_requests_that_cannot_be_read_do_not_keep_the_trace_open(core: Core) -> None:
    core.add(Request("a", CALL))
    del core.requests["a"].sampling_params
    core.observer.close()
    (status,) = read_trace(core.run).statuses
    assert status.closed
    assert list(status.errors) == ["request"]
