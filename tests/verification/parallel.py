"""Engines of several processes: ranks, replicas, stages, experts, prompts apart from decoding."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.engine_process.job import HERE, Job, Outcome, run_job
from support.every_drafter import ALL

from driftscope.trace.reader import Trace
from verification.situations import ASYNC
from verification.truth import RECORD, WITHOUT_AOT

REQUESTS = 10
BOTH_CORES = "0|1"
_COMMON = Job(drafter="eagle31", main="parallel_main.py", processes=True, requests=REQUESTS)
TENSOR = {"tensor_parallel_size": 2}
DATA = {"data_parallel_size": 2, "data_parallel_backend": "mp"}
PIPELINE = {"pipeline_parallel_size": 2}
NO_DYNAMO = {"TORCHDYNAMO_DISABLE": "1"}
KINDS = {
    "tensor v1": replace(_COMMON, llm=TENSOR, env=WITHOUT_AOT),
    "tensor v2": replace(_COMMON, runner="v2", llm=TENSOR, env=NO_DYNAMO),
    "data v1": replace(_COMMON, llm=DATA),
    "data v2": replace(_COMMON, runner="v2", llm=DATA),
    "pipeline v2": replace(_COMMON, runner="v2", llm={**ASYNC, **PIPELINE}),
    "both v2": replace(
        _COMMON,
        runner="v2",
        llm={**ASYNC, **PIPELINE, **TENSOR},
        env={**NO_DYNAMO, "VLLM_CPU_OMP_THREADS_BIND": f"{BOTH_CORES}|{BOTH_CORES}"},
    ),
}
"""Jobs by kind. vLLM's V1 runner does not start with EAGLE-3 and pipeline stages, nor does its V2
runner with stages on a CPU without asynchronous scheduling. A split embedding is compiled, which
inductor cannot do where Triton's interpreter replaces a GPU. "both" are two stages of two tensor
ranks each."""
WRITERS = {
    "tensor": {"worker0", "worker1", "engine0"},
    "data": {"worker0", "worker0.dp1", "engine0", "engine1"},
    "pipeline": {"worker0", "engine0"},
    "both": {"worker0", "worker1", "engine0"},
}
FEW = 3


def writers(trace: Trace) -> set[str]:
    """Return the roles of the processes that recorded a run."""
    return {status.source.partition("-")[0] for status in trace.statuses}


def _of_experts(folder: Path) -> Job:
    """Return a job with a mixture of experts with random weights, each replica of which has a part
    of every expert: with whole experts on each (`enable_expert_parallel`) vLLM's CPU kernel
    crashes."""
    target = folder / "target"
    target.mkdir(parents=True)
    fields = {**ALL["Glm4MoeMTPModel"].target, "vocab_size": 1024, "max_position_embeddings": 1024}
    (target / "config.json").write_text(json.dumps(fields))
    return Job(
        drafter=str(target),
        target=str(target),
        method="mtp",
        processes=True,
        sampling={"max_tokens": 12},
        llm={"load_format": "dummy"},
        env={"PYTHONPATH": os.pathsep.join([str(HERE / "experts_on_cpu"), *sys.path[1:]])},
    )


def experts(folder: Path, requests: int, probe: dict[str, str]) -> Outcome:
    """Serve a mixture of experts on two replicas that share its experts. With one request, one of
    them is idle, and runs so that the other can."""
    job = _of_experts(folder)
    replicas = {"main": "parallel_main.py", "llm": {**job.llm, **DATA}}
    job = replace(job, requests=requests, probe=probe, **replicas)
    return run_job(job, folder / "job", BOTH_CORES)


def split(folder: Path) -> tuple[Outcome, Outcome, Outcome]:
    """Compute prompts in one engine and decode in another, over vLLM's ExampleConnector; return
    both, and one engine that does both without the probe."""

    def half(role: str, **sampling: Any) -> Outcome:
        transfer = {
            "kv_connector": "ExampleConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"shared_storage_path": str(folder / "kv")},
        }
        job = Job(
            drafter="eagle31",
            requests=FEW,
            probe=RECORD,
            sampling=sampling,
            llm={"block_size": 32, "kv_transfer_config": transfer},
        )
        return run_job(job, folder / role)

    return (
        half("kv_producer", max_tokens=1),
        half("kv_consumer"),
        run_job(Job(drafter="eagle31", requests=FEW, llm={"block_size": 32}), folder / "alone"),
    )
