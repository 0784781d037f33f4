"""Engines of several processes: tensor, data and pipeline parallel, on two cores."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.collector import Collector, http
from support.engine_process.job import EVERY_KIND, HERE, Job, Outcome, run_job, run_jobs
from support.every_drafter import ALL
from verification.situations import ASYNC
from verification.truth import JOBS, RECORD, WITHOUT_AOT, Truth, compare

from driftscope.pipeline import Inputs, analyze
from driftscope.telemetry.settings import OTLP
from driftscope.trace.ranks import place_of
from driftscope.trace.reader import Trace, read_trace

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need a core each"),
    pytest.mark.nightly,
]
MASS_TOLERANCE = 2e-5
RMS_TOLERANCE = 1e-4
ENTROPY_TOLERANCE = 1e-3
HEADS = 8
CHAINS = 100
REQUESTS, FEW = 10, 3
BOTH_CORES = "0|1"
_V1 = Job(drafter="eagle31", processes=True, requests=REQUESTS, probe=RECORD)
_V2 = replace(_V1, runner="v2")
TENSOR = {"tensor_parallel_size": 2}
DATA = {"data_parallel_size": 2, "data_parallel_backend": "mp"}
PIPELINE = {"pipeline_parallel_size": 2}
NO_DYNAMO = {"TORCHDYNAMO_DISABLE": "1"}
KINDS = {
    "tensor v1": replace(_V1, llm=TENSOR, env=WITHOUT_AOT),
    "tensor v2": replace(_V2, llm=TENSOR, env=NO_DYNAMO),
    "data v1": replace(_V1, llm=DATA),
    "data v2": replace(_V2, llm=DATA),
    "pipeline v2": replace(_V2, llm={**ASYNC, **PIPELINE}),
    "both v2": replace(
        _V2,
        llm={**ASYNC, **PIPELINE, **TENSOR},
        env={**NO_DYNAMO, "VLLM_CPU_OMP_THREADS_BIND": f"{BOTH_CORES}|{BOTH_CORES}"},
    ),
}
"""Jobs by kind. vLLM's V1 runner does not start with EAGLE-3 and pipeline stages, nor does its V2
runner with stages on a CPU without asynchronous scheduling. A split embedding is compiled, which
inductor cannot do where Triton's interpreter replaces a GPU. "both" are two stages of two tensor
ranks each."""
if not EVERY_KIND:  # each kind of parallelism, and both runners; `make parallel` has all
    KINDS = {kind: KINDS[kind] for kind in ("tensor v1", "data v2", "pipeline v2")}
WRITERS = {
    "tensor": {"worker0", "worker1", "engine0"},
    "data": {"worker0", "worker0.dp1", "engine0", "engine1"},
    "pipeline": {"worker0", "engine0"},
    "both": {"worker0", "worker1", "engine0"},
}
REPLICAS = [kind for kind in KINDS if kind.startswith("data")]


def _sort(kind: str) -> str:
    return kind.partition(" ")[0]


def writers(trace: Trace) -> set[str]:
    """Return the roles of the processes that recorded a run."""
    return {status.source.partition("-")[0] for status in trace.statuses}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Collector to which the replicas export."""
    with http() as found:
        yield found


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> dict[str, Outcome]:
    """Outcomes by kind, and one process without the probe, "off". They run one at a time, because
    each uses both cores."""
    speaking = {OTLP: collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    jobs = {**KINDS, "off": JOBS["v1 off"]}
    jobs[REPLICAS[0]] = replace(jobs[REPLICAS[0]], env=speaking)
    return run_jobs(jobs, tmp_path_factory.mktemp("parallel"), (BOTH_CORES,))


@pytest.fixture(scope="module")
def truths(engines: dict[str, Outcome]) -> dict[str, Truth]:
    return {name: compare(engines[name]) for name in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_that_of_one_process_without_the_probe(
    engines: dict[str, Outcome], kind: str
) -> None:
    assert engines[kind].tokens() == engines["off"].tokens()[:REQUESTS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_chain_is_its_requests_own_and_true(truths: dict[str, Truth], kind: str) -> None:
    truth = truths[kind]
    assert truth.drafted_equal == truth.chains >= CHAINS
    assert truth.accepted_equal == truth.verified >= CHAINS
    assert truth.mass_error <= MASS_TOLERANCE
    assert truth.rms_error < RMS_TOLERANCE
    assert truth.top1_error < MASS_TOLERANCE
    assert truth.entropy_error < ENTROPY_TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_joined_and_counted_once(engines: dict[str, Outcome], kind: str) -> None:
    trace = read_trace(engines[kind].run)
    assert trace.problems == ()
    assert writers(trace) == WRITERS[_sort(kind)]
    draft, verify = trace.draft.to_pandas(), trace.verify.to_pandas()
    assert not draft.duplicated(["request", "position"]).any()
    assert set(draft.heads) == {HEADS}
    step = trace.step.to_pandas()
    assert not step.duplicated(["replica", "step"]).any()
    assert step.chains.sum() == len(draft)
    drafted = verify[verify.verified > 0]
    verified = set(zip(drafted.request, drafted.position, strict=True))
    assert len(verified) == len(drafted) >= CHAINS
    assert verified <= set(zip(draft.request, draft.position, strict=True))
    assert trace.request.num_rows == REQUESTS
    metrics = engines[kind].metrics
    if metrics:
        assert metrics["vllm:spec_decode_num_accepted_tokens"] == verify.accepted.sum()


@pytest.mark.parametrize("kind", REPLICAS)
def test_both_replicas_serve(engines: dict[str, Outcome], kind: str) -> None:
    trace = read_trace(engines[kind].run)
    for table in (trace.draft, trace.verify, trace.request):
        assert set(table.column("replica").to_pylist()) == {0, 1}


def test_each_replica_speaks_for_itself(engines: dict[str, Outcome], collector: Collector) -> None:
    """Each replica exports while it runs, and at the end has exported every round that it
    verified."""
    verify = read_trace(engines[REPLICAS[0]].run).verify.to_pandas()
    batches = [collector.resource(n)["driftscope.replica"] for n in range(len(collector.metrics))]
    assert set(batches) == {"0", "1"} and len(batches) > 2
    for replica in set(batches):
        last = max(n for n, batch in enumerate(batches) if batch == replica)
        verified = ((verify.replica == int(replica)) & (verify.verified > 0)).sum()
        assert collector.value("driftscope.rounds.completed", batch=last) == verified > 0
        assert collector.value("driftscope.chains.recorded", batch=last) >= verified
    instances = {collector.resource(n)["service.instance.id"] for n in range(len(batches))}
    assert len(instances) == 2


def test_a_missing_sum_over_ranks_is_found_from_what_was_recorded(
    engines: dict[str, Outcome], tmp_path: Path
) -> None:
    planted = os.pathsep.join([str(HERE / "no_sum_of_ranks"), *sys.path[1:]])
    job = KINDS["tensor v1"]
    job = replace(job, requests=FEW, env={**job.env, "PYTHONPATH": planted})
    broken = run_job(job, tmp_path / "broken", BOTH_CORES)
    assert "rank_differs" in _findings(broken)
    assert "rank_differs" not in _findings(engines["tensor v1"])


def _findings(outcome: Outcome) -> list[str]:
    return [found.id for found in analyze(Inputs(sources=[outcome.run], labels=["run"])).findings]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if _sort(kind) == "tensor"])
def test_each_tensor_parallel_rank_writes_every_chain(
    engines: dict[str, Outcome], kind: str
) -> None:
    trace = read_trace(engines[kind].run)
    rows = [0, 0]
    for status in trace.statuses:
        rows[place_of(status.source).rank] += status.rows.get("draft", 0)
    assert rows == [trace.draft.num_rows] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_says_how_many(engines: dict[str, Outcome], kind: str) -> None:
    raw = json.loads((engines[kind].run / "manifest.json").read_text())
    # Replicas of a dense model do not know their number.
    for name in ("tensor_parallel", "pipeline_parallel"):
        assert raw[name] == KINDS[kind].llm.get(f"{name}_size", 1)


def test_an_idle_replica_of_experts_runs_and_records_nothing(tmp_path: Path) -> None:
    """The replicas share the experts of random weights, so that the one without a request runs
    along. Each has a part of every expert: with whole experts on each (`enable_expert_parallel`)
    vLLM's CPU kernel crashes."""
    target = tmp_path / "target"
    target.mkdir()
    fields = {**ALL["Glm4MoeMTPModel"].target, "vocab_size": 1024, "max_position_embeddings": 1024}
    (target / "config.json").write_text(json.dumps(fields))
    job = Job(
        drafter=str(target),
        target=str(target),
        method="mtp",
        processes=True,
        requests=1,
        sampling={"max_tokens": 12},
        llm={"load_format": "dummy", **DATA},
        env={"PYTHONPATH": os.pathsep.join([str(HERE / "experts_on_cpu"), *sys.path[1:]])},
    )
    jobs = {"on": replace(job, probe=RECORD), "off": job}
    done = run_jobs(jobs, tmp_path / "jobs", (BOTH_CORES,))
    assert done["on"].tokens() == done["off"].tokens()
    trace = read_trace(done["on"].run)
    assert trace.problems == () and not any(status.errors for status in trace.statuses)
    assert writers(trace) == WRITERS["data"]
    assert trace.manifest.data_parallel == 2
    assert len(set(trace.draft.column("replica").to_pylist())) == 1
    assert trace.draft.num_rows > 0 and trace.request.num_rows == 1


def test_prompts_and_decoding_apart_join_by_request(tmp_path: Path) -> None:
    """One engine computes the prompts and another decodes, over vLLM's ExampleConnector."""

    def half(role: str, **sampling: Any) -> Outcome:
        transfer = {
            "kv_connector": "ExampleConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")},
        }
        llm = {"block_size": 32, "kv_transfer_config": transfer}
        job = Job(drafter="eagle31", requests=FEW, probe=RECORD, sampling=sampling, llm=llm)
        return run_job(job, tmp_path / role)

    prompts, decoded = half("kv_producer", max_tokens=1), half("kv_consumer")
    alone = run_job(Job(drafter="eagle31", requests=FEW, llm={"block_size": 32}), tmp_path / "off")
    assert decoded.tokens() == alone.tokens()
    first, second = read_trace(prompts.run), read_trace(decoded.run)
    names = [
        {row["request"].rpartition("-")[0] for row in trace.request.to_pylist()}
        for trace in (first, second)
    ]
    assert names[0] == names[1] and len(names[0]) == FEW
    assert first.verify.num_rows == 0 < second.verify.num_rows
    assert any("another one decodes" in note for note in first.manifest.notes)
    assert any("computes the prompts" in note for note in second.manifest.notes)
    truth = compare(decoded)
    assert truth.drafted_equal == truth.chains > 0
    assert truth.mass_error <= MASS_TOLERANCE and truth.rms_error < RMS_TOLERANCE
