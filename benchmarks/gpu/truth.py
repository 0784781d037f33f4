"""Compare the probe on a GPU with the float64 reference, and its engines with those without it.

The engines serve the tiny trio: dtypes, backends, runners, graphs and modes in `truth` and
`harmless`; mixed batches, chunked prompts, prefix caching, preemption, the context's limit, K by
batch size and all ends of requests in `situations`. Engines that are in a stage's file are not run
again, unless they failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.engine_process.job import Job, Outcome, run_job
from verification.situations import SITUATION_JOBS
from verification.situations_truth import answered_alike, figures_of
from verification.truth import compare

from benchmarks.results_file import ResultsFile, read
from driftscope.trace.reader import read_trace

SIDE_BY_SIDE = {"cuda": 6, "cpu": 1}
MASS_ERROR = {"fp32": 1e-3, "bf16": 1e-2}
"""Largest absolute error of a mass that passes, by the engine's dtype."""
ACCEPTED_BY_VLLM = "vllm:spec_decode_num_accepted_tokens"
RECORD = {"TOKEN_IDS": "1", "EVERY": "1", "DISTANCE_EVERY": "1"}
FP32 = {"dtype": "float32", "attention_backend": "TRITON_ATTN"}
BF16 = {"dtype": "bfloat16", "attention_backend": "FLASH_ATTN"}
BF16_TRITON = {"dtype": "bfloat16", "attention_backend": "TRITON_ATTN"}
MEMORY = {"gpu_memory_utilization": 0.08, "kv_cache_memory_bytes": 1 << 30, "max_num_seqs": 8}
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
    "fp32 v2 graphs": _job("v2", True, FP32),
    "fp32 v1 graphs": _job("v1", True, FP32),
    "bf16 v2 graphs lse": _job("v2", True, BF16),
    "bf16 v1 graphs lse": _job("v1", True, BF16),
    "bf16 v2 graphs off": replace(_job("v2", True, BF16), probe={}),
    "bf16 v2 graphs raising": _job("v2", True, BF16, TEST_RAISE="before"),
    "fp32 v2 graphs off": replace(_job("v2", True, FP32), probe={}),
    "bf16 v1 graphs off": replace(_job("v1", True, BF16), probe={}),
    "bf16 v1 graphs raising": _job("v1", True, BF16, TEST_RAISE="after"),
    "bf16 v2 graphs default": replace(_job("v2", True, BF16), probe={"TOKEN_IDS": "1"}),
    "fp32 v1 graphs off": replace(_job("v1", True, FP32), probe={}),
    "fp32 v2 eager": _job("v2", False, FP32),
    "fp32 v1 eager": _job("v1", False, FP32),
    "bf16 v2 graphs keys": _job("v2", True, BF16, STRATEGY="keys"),
    "bf16 v2 graphs triton-attn": _job("v2", True, BF16_TRITON),
    "fp32 v2 graphs eagle3": _job("v2", True, FP32, "eagle3"),
    "bf16 v2 shadow": _job("v2", True, BF16, RECORDING="shadow"),
    "bf16 v2 sampled eager": _job("v2", True, BF16, RECORDING="eager"),
    "bf16 v1 shadow": _job("v1", True, BF16, RECORDING="shadow"),
    "bf16 v2 eager lse": _job("v2", False, BF16),
    "fp32 v2 per head": _job("v2", True, FP32, PER_HEAD="1"),
}
CPU_JOBS = {
    "fp32 v1 eager": Job(drafter="eagle31", probe=RECORD),
    "fp32 v2 eager": Job(drafter="eagle31", runner="v2", probe=RECORD),
    "fp32 v1 eager off": Job(drafter="eagle31"),
}
JOBS = {"cuda": CUDA_JOBS, "cpu": CPU_JOBS}
CPU_SITUATIONS = ("tight v1 off", "tight v1")


def _examine(name: str, outcome: Outcome) -> Found:
    digest = hashlib.sha256(json.dumps(outcome.tokens()).encode()).hexdigest()
    accepted = outcome.metrics.get(ACCEPTED_BY_VLLM)
    found: Found = {"tokens_sha256": digest, "accepted_by_vllm": accepted}
    if not outcome.job.probe:
        return found
    trace = read_trace(outcome.run)
    found["errors"] = sum(sum(status.errors.values()) for status in trace.statuses)
    if name.endswith(OUTPUT_ONLY):
        return found
    rows, steps, verified = (table.to_pylist() for table in (trace.draft, trace.step, trace.verify))
    return {
        **found,
        "execution": sorted({row["execution"] for row in rows}),
        "strategy": sorted({row["strategy"] for row in rows}),
        "problems": list(trace.problems),
        "gpu_draft_ms": _middle([step["gpu_draft_s"] for step in steps]),
        "gpu_probe_ms": _middle([step["gpu_probe_s"] for step in steps]),
        "accepted": sum(row["accepted"] for row in verified),
        "drafted": sum(row["drafted"] for row in verified),
        **asdict(compare(outcome, rounded="bf16" in name)),
    }


def _middle(values: list[float | None]) -> float | None:
    known = sorted(v for v in values if v is not None)
    return known[len(known) // 2] * 1000 if known else None


def faults(name: str, found: Found) -> list[str]:
    """Return the deviations of an engine's recording from the truth; [] if there are none."""
    if "error" in found:
        return ["did not run"]
    if "raising" in name and not found["errors"]:
        return ["no hook failed"]
    wrong = []
    if found.get("answered_alike") != found.get("requests"):
        alike = f"{found['answered_alike']} of {found['requests']}"
        wrong.append(f"{alike} answers as without the probe")
    for row in found.get("situations", ()):
        told = _deviations(row, chains="right", verified="judged", most=MASS_ERROR["fp32"])
        if row["flagged"] != row["wrong"]:
            told.append(f"{row['wrong'] - row['flagged']} doubtful chains are not flagged")
        wrong += [f"{row['situation']}: {words}" for words in told]
    if "mass_error" not in found:
        return wrong
    # In bf16 the engine itself drafts other tokens than float64 where two are almost equally
    # likely.
    exact = name.startswith("fp32")
    wrong += _deviations(found, "chains", "verified", MASS_ERROR[name[:4]], exact=exact)
    if found["accepted"] != found["accepted_by_vllm"]:
        wrong.append(f"{found['accepted']} accepted, vLLM says {found['accepted_by_vllm']}")
    if not found["chains"]:
        wrong.append("nothing recorded")
    return wrong + list(found["problems"])


def _deviations(
    row: Found, chains: str, verified: str, most: float, *, exact: bool = True
) -> list[str]:
    wrong = []
    # Written as `not <=`, so that a NaN fails too.
    if not row["mass_error"] <= most:
        wrong.append(f"mass error {row['mass_error']:.1e}")
    if exact and row["drafted_equal"] != row[chains]:
        wrong.append(f"{row[chains] - row['drafted_equal']} chains drafted otherwise")
    if exact and row["accepted_equal"] != row[verified]:
        wrong.append(f"{row[verified] - row['accepted_equal']} counts differ")
    return wrong


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
    rows = [row for found in results.values() for row in (found, *found.get("situations", ()))]
    errors = [row["mass_error"] for row in rows if "mass_error" in row]
    words = f"{len(results)} engines"
    words += f", largest mass error {max(errors):.1e}" if errors else ""
    told = "; ".join(f"{name}: {', '.join(why)}" for name, why in wrong.items())
    return not wrong, f"{words}; {told}" if told else words


def _attempt(
    name: str, job: Job, folder: Path, log: Path, examine: Callable[[str, Outcome], Found]
) -> Found:
    """Run one engine and return its results; an error is part of them."""
    began = time.time()
    try:
        found = examine(name, run_job(job, folder, "0"))
    except Exception:
        found = {"error": traceback.format_exc()[-4000:]}
        if (text := folder / "log.txt").exists():
            log.mkdir(exist_ok=True)
            end = text.read_text(errors="replace")[-60_000:]
            (log / f"{name.replace(' ', '-')}.txt").write_text(end)
    return {**found, "seconds": round(time.time() - began, 1)}


def _run(
    file: ResultsFile,
    out: Path,
    deadline: float,
    jobs: Mapping[str, Job],
    examine: Callable[[str, Outcome], Found],
    *,
    side_by_side: int = 1,
    beside: Mapping[str, Found] | None = None,
) -> None:
    """Run the engines that the file lacks, and write it after each. Engines `beside` them are
    judged with them."""
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    results = {n: f for n, f in file.facts.get("engines", {}).items() if "error" not in f}
    with (
        TemporaryDirectory(prefix="driftscope-gpu-") as root,
        ThreadPoolExecutor(side_by_side) as pool,
    ):

        def attempt(name: str, job: Job) -> Found | None:
            if time.time() > deadline:
                return None
            return _attempt(name, job, Path(root) / name.replace(" ", "-"), out / "logs", examine)

        todo = {name: job for name, job in jobs.items() if name not in results}
        pending = {name: pool.submit(attempt, name, job) for name, job in todo.items()}
        for name, future in pending.items():
            if (found := future.result()) is not None:
                results[name] = found
                print(f"{name}: {json.dumps(found)[:400]}", flush=True)
                file.write(engines=results)
    ok, verdict = judge({**(beside or {}), **results})
    complete = all(name in results for name in jobs)
    file.write(complete=complete, ok=ok, verdict=verdict, engines=results)


def run_truth(file: ResultsFile, out: Path, deadline: float) -> None:
    """Run the engines whose every round is compared with the reference."""
    jobs = {n: j for n, j in JOBS[file.device].items() if not n.endswith(("off", *OUTPUT_ONLY))}
    _run(file, out, deadline, jobs, _examine, side_by_side=SIDE_BY_SIDE[file.device])


def run_harmless(file: ResultsFile, out: Path, deadline: float) -> None:
    """Run the engines of which the output counts, and compare it with that of `truth`."""
    jobs = {n: j for n, j in JOBS[file.device].items() if n.endswith(("off", *OUTPUT_ONLY))}
    truth = read(out / "truth.json").get("engines", {})
    side_by_side = SIDE_BY_SIDE[file.device]
    _run(file, out, deadline, jobs, _examine, side_by_side=side_by_side, beside=truth)


def situations(device: str) -> dict[str, Job]:
    """Return the engines of `situations` by name, each after the one without the probe that it is
    compared with. Options that this vLLM does not know are left out."""
    if device == "cpu":
        return {name: SITUATION_JOBS[name] for name in CPU_SITUATIONS}
    from vllm import EngineArgs

    known = {field.name for field in fields(EngineArgs)}
    return {
        name: replace(
            job,
            device="cuda",
            compiled=True,
            llm={k: v for k, v in {**MEMORY, **FP32, **job.llm}.items() if k in known},
        )
        for name, job in SITUATION_JOBS.items()
    }


def run_situations(file: ResultsFile, out: Path, deadline: float) -> None:
    """Run the engines of `situations`, one after another."""
    without: dict[str, Outcome] = {}

    def examine(name: str, outcome: Outcome) -> Found:
        if name.endswith(" off"):
            without[name] = outcome
        found: Found = {}
        if outcome.job.probe:
            found["situations"] = [asdict(figures) for figures in figures_of(outcome)]
        if twin := without.get(f"{name} off"):
            alike = answered_alike(outcome, twin)
            found |= {"requests": len(alike), "answered_alike": sum(alike)}
        return found

    jobs, engines = situations(file.device), file.facts.get("engines", {})
    for name in jobs:
        # A twin runs again with its engine, because its answers are not in the file.
        twin_of = name.removesuffix(" off")
        if twin_of != name and "error" in engines.get(twin_of, {"error": "not run"}):
            engines.pop(name, None)
    _run(file, out, deadline, jobs, examine)
