"""Engines of several processes: tensor, data and pipeline parallel, on two cores."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.collector import Collector, http
from support.engine_process.job import EVERY_KIND, HERE, Outcome, run_job, run_jobs
from verification.harmless import JOBS
from verification.parallel import (
    BOTH_CORES,
    FEW,
    REQUESTS,
    WRITERS,
    experts,
    split,
    writers,
)
from verification.parallel import KINDS as ALL_KINDS
from verification.truth import RECORD, Truth, compare

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
IN_TURN = ("tensor v1", "data v2", "pipeline v2")
"""Kinds that every test run has: each kind of parallelism, and both runners; `make parallel` has
all."""
KINDS = ALL_KINDS if EVERY_KIND else {kind: ALL_KINDS[kind] for kind in IN_TURN}


def _sort(kind: str) -> str:
    return kind.partition(" ")[0]


TENSORS = [kind for kind in KINDS if _sort(kind) == "tensor"]
REPLICAS = [kind for kind in KINDS if _sort(kind) == "data"]
EXPORTING = REPLICAS[0]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Collector to which the replicas export."""
    with http() as found:
        yield found


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> dict[str, Outcome]:
    """Outcomes by kind, and one process without the probe, "off". They run one at a time, because
    each uses both cores."""
    jobs = {name: replace(job, probe=RECORD) for name, job in KINDS.items()}
    speaking = {OTLP: collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    jobs[EXPORTING] = replace(jobs[EXPORTING], env=speaking)
    jobs["off"] = JOBS["v1 off"]
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
    assert truth.chains >= CHAINS
    assert truth.drafted_equal == truth.chains
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
    verify = read_trace(engines[EXPORTING].run).verify.to_pandas()
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
    job = ALL_KINDS["tensor v1"]
    job = replace(job, requests=FEW, probe=RECORD, env={**job.env, "PYTHONPATH": planted})
    broken = run_job(job, tmp_path / "broken", BOTH_CORES)
    assert "rank_differs" in _findings(broken)
    assert "rank_differs" not in _findings(engines["tensor v1"])


def _findings(outcome: Outcome) -> list[str]:
    return [found.id for found in analyze(Inputs(sources=[outcome.run], labels=["run"])).findings]


def _rows(trace: Trace, rank: int) -> int:
    return sum(s.rows.get("draft", 0) for s in trace.statuses if place_of(s.source).rank == rank)


@pytest.mark.parametrize("kind", TENSORS)
def test_each_tensor_parallel_rank_writes_every_chain(
    engines: dict[str, Outcome], kind: str
) -> None:
    trace = read_trace(engines[kind].run)
    assert _rows(trace, 0) == _rows(trace, 1) == trace.draft.num_rows


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_says_how_many(engines: dict[str, Outcome], kind: str) -> None:
    raw = json.loads((Path(engines[kind].run) / "manifest.json").read_text())
    # Replicas of a dense model do not know their number.
    assert raw["tensor_parallel"] == (2 if _sort(kind) in ("tensor", "both") else 1)
    assert raw["pipeline_parallel"] == (2 if _sort(kind) in ("pipeline", "both") else 1)


def test_an_idle_replica_of_experts_runs_and_records_nothing(tmp_path: Path) -> None:
    """The replicas share the experts, so that the one without a request runs along."""
    on, off = experts(tmp_path / "on", 1, RECORD), experts(tmp_path / "off", 1, {})
    assert on.tokens() == off.tokens()
    trace = read_trace(on.run)
    assert trace.problems == () and not any(status.errors for status in trace.statuses)
    assert writers(trace) == WRITERS["data"]
    assert trace.manifest.data_parallel == 2
    assert len(set(trace.draft.column("replica").to_pylist())) == 1
    assert trace.draft.num_rows > 0 and trace.request.num_rows == 1


def test_prompts_and_decoding_apart_join_by_request(tmp_path: Path) -> None:
    prompts, decoded, alone = split(tmp_path)
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
