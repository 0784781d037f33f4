"""Compare the probe on a GPU with the float64 reference, and its engines with those without it.

The engines serve the tiny trio, several at a time, the most important first. Engines that are in
the file are not run again, unless they failed.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from support.engine_process.job import Job, Outcome, run_job
from verification.truth import compare

from benchmarks.results_file import ResultsFile
from driftscope.trace.manifest import AGREES
from driftscope.trace.reader import read_trace

SIDE_BY_SIDE = {"cuda": 8, "cpu": 1}
MASS_ERROR = {"fp32": 1e-3, "bf16": 1e-2}
"""Largest absolute error of a mass that passes, by the engine's dtype."""
ACCEPTED_BY_VLLM = "vllm:spec_decode_num_accepted_tokens"
RECORD = {"TOKEN_IDS": "1", "EVERY": "1", "DISTANCE_EVERY": "1"}
FP32 = {"dtype": "float32", "attention_backend": "TRITON_ATTN"}
BF16 = {"dtype": "bfloat16", "attention_backend": "FLASH_ATTN"}
BF16_TRITON = {"dtype": "bfloat16", "attention_backend": "TRITON_ATTN"}
MEMORY = {
    "gpu_memory_utilization": 0.08,
    "kv_cache_memory_bytes": 1 << 30,
    "num_gpu_blocks_override": 512,  # of 16 tokens: nothing is preempted
    "max_num_seqs": 8,
    # Few graphs, which are captured soon: of K + 1 tokens for each request, and of single ones.
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 9, 18, 36, 72]},
}
Found = dict[str, Any]


def _job(
    runner: str, graphs: bool, llm: dict[str, Any], drafter: str = "eagle31", **probe: str
) -> Job:
    return Job(
        drafter=drafter,
        runner=runner,
        compiled=graphs,
        device="cuda",
        processes=True,
        llm={**MEMORY, **llm},
        probe={**RECORD, **probe},
    )


OUTPUT_ONLY = ("raising", "default")
"""Ends of the names of engines of which only the output is judged: every hook fails, or few rounds
are recorded."""
CUDA_JOBS = {
    "bf16 v2 graphs lse": _job("v2", True, BF16),
    "fp32 v2 graphs": _job("v2", True, FP32),
    "bf16 v1 graphs lse": _job("v1", True, BF16),
    "bf16 v2 graphs off": replace(_job("v2", True, BF16), probe={}),
    "bf16 v2 graphs default": replace(_job("v2", True, BF16), probe={"TOKEN_IDS": "1"}),
    "bf16 v2 graphs raising": _job("v2", True, BF16, TEST_RAISE="before"),
    "bf16 v2 eager lse": _job("v2", False, BF16),
    "bf16 v1 graphs off": replace(_job("v1", True, BF16), probe={}),
    "bf16 v2 graphs triton-attn": _job("v2", True, BF16_TRITON),
    "fp32 v2 graphs off": replace(_job("v2", True, FP32), probe={}),
    "fp32 v1 graphs": _job("v1", True, FP32),
    "bf16 v1 graphs raising": _job("v1", True, BF16, TEST_RAISE="after"),
    "fp32 v1 graphs off": replace(_job("v1", True, FP32), probe={}),
    "fp32 v2 eager": _job("v2", False, FP32),
    "bf16 v2 shadow": _job("v2", True, BF16, RECORDING="shadow"),
}
CPU_JOBS = {
    "fp32 v1 eager": Job(drafter="eagle31", probe=RECORD),
    "fp32 v2 eager": Job(drafter="eagle31", runner="v2", probe=RECORD),
    "fp32 v1 eager off": Job(drafter="eagle31"),
}
JOBS = {"cuda": CUDA_JOBS, "cpu": CPU_JOBS}


def _examine(name: str, outcome: Outcome) -> Found:
    digest = hashlib.sha256(json.dumps(outcome.tokens()).encode()).hexdigest()
    accepted = outcome.metrics.get(ACCEPTED_BY_VLLM)
    found: Found = {"tokens_sha256": digest, "accepted_by_vllm": accepted}
    if not outcome.job.probe:
        return found
    trace = read_trace(outcome.run)
    found["errors"] = sum(sum(status.errors.values()) for status in trace.statuses)
    found["first_errors"] = [status.first_error for status in trace.statuses if status.first_error]
    found["witness"] = trace.manifest.witness
    if name.endswith(OUTPUT_ONLY) or found["witness"] != AGREES:
        return found
    rows, verified = trace.draft.to_pylist(), trace.verify.to_pylist()
    return {
        **found,
        "execution": sorted({row["execution"] for row in rows}),
        "strategy": sorted({row["strategy"] for row in rows}),
        "problems": list(trace.problems),
        "accepted": sum(row["accepted"] for row in verified),
        "drafted": sum(row["drafted"] for row in verified),
        **asdict(compare(outcome, rounded="bf16" in name)),
    }


def faults(name: str, found: Found) -> list[str]:
    """Return the deviations of an engine's recording from the truth; [] if there are none."""
    if "error" in found:
        return ["did not run"]
    if "raising" in name and not found["errors"]:
        return ["no hook failed"]
    wrong = []
    if "raising" not in name and found.get("errors"):
        wrong.append(f"{found['errors']} errors: {found['first_errors'][0]}")
    # At the default budget no step may have been recorded yet.
    judged = found.get("witness") is not None or not name.endswith(OUTPUT_ONLY)
    if "raising" not in name and judged and found.get("witness", AGREES) != AGREES:
        wrong.append(f"the witness says {found['witness']}")
    if "mass_error" not in found:
        return wrong
    # In bf16 the engine itself drafts other tokens than float64 where two are almost equally
    # likely.
    exact = name.startswith("fp32")
    # Written as `not <=`, so that a NaN fails too.
    if not found["mass_error"] <= MASS_ERROR[name[:4]]:
        wrong.append(f"mass error {found['mass_error']:.1e}")
    if exact and found["drafted_equal"] != found["chains"]:
        wrong.append(f"{found['chains'] - found['drafted_equal']} chains drafted otherwise")
    if exact and found["accepted_equal"] != found["verified"]:
        wrong.append(f"{found['verified'] - found['accepted_equal']} counts differ")
    # Results of before they were recorded have none.
    off = max(found.get(error, 0.0) for error in ("rank_error", "closeness_error"))
    if exact and not off <= MASS_ERROR[name[:4]]:
        wrong.append(f"rejected tokens off by {off:.1e}")
    if found["accepted"] != found["accepted_by_vllm"]:
        wrong.append(f"{found['accepted']} accepted, vLLM says {found['accepted_by_vllm']}")
    if not found["chains"]:
        wrong.append("nothing recorded")
    return wrong + list(found["problems"])


def same_tokens(name: str, results: Mapping[str, Found]) -> bool | None:
    """Return whether an engine generated the tokens of the one without the probe; None if none was
    run."""
    base = results.get(f"{name.rsplit(' ', 1)[0]} off") or results.get(f"{name} off") or {}
    if "tokens_sha256" not in base or "tokens_sha256" not in results[name]:
        return None
    return bool(base["tokens_sha256"] == results[name]["tokens_sha256"])


def judge(results: Mapping[str, Found]) -> tuple[bool, str]:
    """Return whether all engines passed, and a one-line verdict."""
    wrong = {name: why for name, found in results.items() if (why := faults(name, found))}
    wrong |= {n: ["other tokens than without"] for n in results if same_tokens(n, results) is False}
    errors = [found["mass_error"] for found in results.values() if "mass_error" in found]
    words = f"{len(results)} engines"
    words += f", largest mass error {max(errors):.1e}" if errors else ""
    reasons = "; ".join(f"{name}: {', '.join(why)}" for name, why in wrong.items())
    return not wrong, f"{words}; {reasons}" if reasons else words


def _attempt(name: str, job: Job, folder: Path, log: Path) -> Found:
    """Run one engine and return its results; an error is part of them."""
    began = time.time()
    try:
        found = _examine(name, run_job(job, folder, "0"))
    except Exception:
        found = {"error": traceback.format_exc()[-4000:]}
        if (text := folder / "log.txt").exists():
            log.mkdir(exist_ok=True)
            end = text.read_text(errors="replace")[-60_000:]
            (log / f"{name.replace(' ', '-')}.txt").write_text(end)
    return {**found, "seconds": round(time.time() - began, 1)}


def run(file: ResultsFile, out: Path, deadline: float) -> None:
    """Run the engines that the file lacks, and write it after each; none begins after the
    deadline."""
    torch.set_num_threads(2)  # several comparisons at a time, beside engines that compile
    jobs = JOBS[file.device]
    results = {n: f for n, f in file.facts.get("engines", {}).items() if "error" not in f}
    todo = [name for name in jobs if name not in results]
    with (
        TemporaryDirectory(prefix="driftscope-gpu-") as root,
        ThreadPoolExecutor(SIDE_BY_SIDE[file.device]) as pool,
    ):

        def attempt(name: str) -> Found | None:
            if time.time() > deadline:
                return None
            return _attempt(name, jobs[name], Path(root) / name.replace(" ", "-"), out / "logs")

        pending = {pool.submit(attempt, name): name for name in todo}
        for future in as_completed(pending):
            if (found := future.result()) is not None:
                results[pending[future]] = found
                print(f"{pending[future]}: {json.dumps(found)[:400]}", flush=True)
                _write(file, results)
    _write(file, results)


def _write(file: ResultsFile, results: dict[str, Found]) -> None:
    ok, verdict = judge(results)
    complete = all(name in results for name in JOBS[file.device])
    file.write(complete=complete, ok=ok, verdict=verdict, engines=results)
