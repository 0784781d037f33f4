"""A worker's steps become rows; hooks that fail cost their chains and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import Spec, manifest

from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.writer import TraceWriter, create_run
from driftscope_probes.drafter import Drafter
from driftscope_probes.recorder import Recorder
from driftscope_probes.settings import Settings


@pytest.fixture
def record(
    tmp_path: Path, make_drafter: Callable[..., Drafter], make_batch: Callable[..., Any]
) -> Callable[..., Trace]:
    """Run draft steps, by request's prefilling flags (None: a step without a draft)."""

    def run(*steps: tuple[bool, bool] | None, **changes: Any) -> Trace:
        path, drafter = tmp_path / "run", make_drafter()
        settings = Settings(trace=path, sink_tokens=2, **changes)
        create_run(path, manifest(Spec()))
        recorder = Recorder(drafter, settings, TraceWriter(path, source="worker0-1"))
        drafts = []
        for prefilling in steps:
            recorder.step_started()
            if prefilling is not None:
                batch = make_batch(drafter, prefilling)
                recorder.draft_started(lambda view=batch.view: view)
                drafts.append(batch.draft())
                recorder.draft_ended(drafts[-1])
            recorder.step_ended(2)
        recorder.close()
        assert all(torch.equal(d, drafts[0]) for d in drafts), "recording changes no draft"
        return read_trace(path)

    return run


def test_each_step_and_each_chain_is_a_row(record: Callable[..., Trace]) -> None:
    trace = record((False, False), (False, False))
    assert trace.step.column("step").to_pylist() == [1, 2]
    assert trace.step.column("chains").to_pylist() == [2, 2]
    chains = trace.draft.select(["step", "request", "position", "prompt_tokens", "k"]).to_pylist()
    assert [tuple(chain.values()) for chain in chains] == [
        (1, "a", 9, 6, 3), (1, "b", 4, 5, 3), (2, "a", 9, 6, 3), (2, "b", 4, 5, 3),
    ]  # fmt: skip
    for name in ("sink_mass", "self_mass", "in_rms", "fed_rms", "top1", "entropy"):
        assert [len(values) for values in trace.draft.column(name).to_pylist()] == [3] * 4
    assert trace.draft.column("token_ids").null_count == 4
    assert trace.problems == ()


def test_every_second_draft_step(record: Callable[..., Trace]) -> None:
    trace = record((False, False), None, (False, False), (False, False), every=2)
    assert trace.step.column("recorded").to_pylist() == [True, False, False, True]
    assert trace.step.column("chains").to_pylist() == [2, 0, 2, 2]
    assert trace.draft.column("step").to_pylist() == [1, 1, 4, 4]


def test_a_prefilling_request_gives_no_chain_and_is_marked_later(
    record: Callable[..., Trace],
) -> None:
    trace = record((False, True), (False, False))
    assert trace.step.column("chains").to_pylist() == [1, 2]
    assert trace.draft.column("request").to_pylist() == ["a", "a", "b"]
    assert trace.draft.column("chunked_prefill").to_pylist() == [False, False, True]


def test_drafted_tokens_on_demand(record: Callable[..., Trace]) -> None:
    ids = record((False, False), token_ids=True).draft.column("token_ids").to_pylist()
    assert [len(tokens) for tokens in ids] == [3, 3]


def test_times_nest(record: Callable[..., Trace]) -> None:
    (step,) = record((False, False)).step.to_pylist()
    assert 0 < step["draft_s"] <= step["step_s"]
    assert 0 < step["probe_s"] < step["step_s"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_that_raise_cost_only_their_chains(record: Callable[..., Trace], when: str) -> None:
    trace = record((False, False), (False, False), test_raise=when)
    assert trace.draft.num_rows == 0
    (status,) = trace.statuses
    assert sum(status.errors.values()) > 0
    (problem,) = trace.problems
    assert "first: draft_started: InjectedError" in problem


def test_a_runner_that_is_laid_out_differently_costs_only_chains(
    tmp_path: Path, make_drafter: Callable[..., Drafter], make_batch: Callable[..., Any]
) -> None:
    drafter = make_drafter()
    create_run(tmp_path / "run", manifest(Spec()))
    writer = TraceWriter(tmp_path / "run", source="worker0-1")
    recorder = Recorder(drafter, Settings(trace=tmp_path / "run"), writer)
    recorder.step_started()
    recorder.draft_started(lambda: {}["no such keyword"])
    recorder.draft_ended(make_batch(drafter).draft())
    recorder.step_ended(2)
    recorder.close()
    trace = read_trace(tmp_path / "run")
    assert (trace.draft.num_rows, trace.step.num_rows) == (0, 1)
    assert trace.statuses[0].errors == {"draft_started": 1}
