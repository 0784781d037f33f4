"""A run of the reference engine is a trace like any other, and says what the engine did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from driftscope.errors import TraceError
from driftscope.inspect.reference.engine import Generation, ReferenceRun
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.segments import RELATIVE_ERROR
from driftscope_lab.trio import encode, load_prompts, trio_path

K, MAX_TOKENS = 4, 12
DRAFTERS = ("eagle3", "eagle31")


@pytest.fixture(scope="module", params=DRAFTERS)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trace, list[Generation], list[list[int]]]:
    path, weights = tmp_path_factory.mktemp("reference") / "run", trio_path()
    prompts = [encode(prompt.in_distribution) for prompt in load_prompts()[:2]]
    with (
        torch.no_grad(),
        ReferenceRun(path, weights / "target", weights / request.param, k=K) as run,
    ):
        done = [run.generate(ids, max_tokens=MAX_TOKENS, label="held out") for ids in prompts]
    return read_trace(path), done, prompts


Recorded = tuple[Trace, list[Generation], list[list[int]]]


def test_it_closes_cleanly(recorded: Recorded) -> None:
    trace, _, _ = recorded
    assert trace.problems == ()
    assert (trace.manifest.engine, trace.manifest.runner) == ("reference", "reference")
    assert (trace.manifest.k, trace.manifest.method) == (K, "eagle3")
    assert trace.manifest.norm_flags["fc_norm"] == trace.manifest.drafter.name.endswith("eagle31")


def test_each_round_is_a_chain_a_step_and_a_verification(recorded: Recorded) -> None:
    trace, done, _ = recorded
    rounds = [(n, round_) for n, result in enumerate(done) for round_ in result.rounds]
    verified = trace.verify.select(["request", "position", "drafted", "accepted"]).to_pylist()
    assert [tuple(row.values()) for row in verified] == [
        (f"reference-{n}", r.chain.position, r.drafted, r.accepted) for n, r in rounds
    ]
    chains = trace.draft.select(["request", "position", "step"]).to_pylist()
    assert [(c["request"], c["position"]) for c in chains] == [
        (row["request"], row["position"]) for row in verified
    ]
    assert trace.step.column("step").to_pylist() == [c["step"] for c in chains]


def test_the_chains_figures_are_the_engines(recorded: Recorded) -> None:
    trace, done, _ = recorded
    rounds = [round_ for result in done for round_ in result.rounds]
    for name in ("sink_mass", "self_mass", "fed_rms", "top1", "entropy", "aux_rms"):
        for stored, round_ in zip(trace.draft.column(name).to_pylist(), rounds, strict=True):
            assert stored == pytest.approx(getattr(round_.chain, name), rel=RELATIVE_ERROR)
    assert trace.draft.column("token_ids").null_count == len(rounds), "no tokens in a trace"


def test_each_request_is_a_row(recorded: Recorded) -> None:
    trace, done, prompts = recorded
    for row, result, prompt in zip(trace.request.to_pylist(), done, prompts, strict=True):
        assert row["prompt_tokens"] == len(prompt)
        assert row["output_tokens"] == len(result.token_ids)
        assert row["finish_reason"] == result.finish_reason
        assert row["label"] == "held out"
        assert row["ttft_s"] == pytest.approx(result.ttft_s)


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    weights = trio_path()
    models = (weights / "target", weights / "eagle3")
    with ReferenceRun(tmp_path / "run", *models, k=1):
        pass
    with pytest.raises(TraceError, match="already holds a run"):
        ReferenceRun(tmp_path / "run", *models, k=1)
