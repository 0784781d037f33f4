"""Compare the probe on a GPU with the float64 reference: dtypes, backends, runners, graphs, modes.

PYTHONPATH=tests:$PYTHONPATH python3 benchmarks/cuda/truth.py [--json FILE] [--logs DIR] [NAME ...]

NAME selects the engines whose name contains it. Needs a CUDA GPU and a vLLM; see README.md here.
With `--device cpu` both runners serve eagerly in fp32. Engines that are in the file are not run
again, unless they failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, Outcome, run_job
from verification.truth import compare

from benchmarks.results_file import ResultsFile
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


def _off(job: Job) -> Job:
    return replace(job, probe={})


OUTPUT_ONLY = ("raising", "default")
"""Ends of the names of engines of which only the output is judged: every hook fails, or few rounds
are recorded."""
CUDA_JOBS = {
    "fp32 v2 graphs": _job("v2", True, FP32),
    "fp32 v1 graphs": _job("v1", True, FP32),
    "bf16 v2 graphs lse": _job("v2", True, BF16),
    "bf16 v1 graphs lse": _job("v1", True, BF16),
    "bf16 v2 graphs off": _off(_job("v2", True, BF16)),
    "bf16 v2 graphs raising": _job("v2", True, BF16, TEST_RAISE="before"),
    "fp32 v2 graphs off": _off(_job("v2", True, FP32)),
    "bf16 v1 graphs off": _off(_job("v1", True, BF16)),
    "bf16 v1 graphs raising": _job("v1", True, BF16, TEST_RAISE="after"),
    "bf16 v2 graphs default": replace(_job("v2", True, BF16), probe={"TOKEN_IDS": "1"}),
    "fp32 v1 graphs off": _off(_job("v1", True, FP32)),
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
}
JOBS = {"cuda": CUDA_JOBS, "cpu": CPU_JOBS}


def _examine(name: str, outcome: Outcome) -> dict[str, Any]:
    digest = hashlib.sha256(json.dumps(outcome.tokens()).encode()).hexdigest()
    accepted = outcome.metrics.get(ACCEPTED_BY_VLLM)
    found: dict[str, Any] = {"tokens_sha256": digest, "accepted_by_vllm": accepted}
    if not outcome.job.probe:
        return found
    trace = read_trace(outcome.run)
    found["errors"] = sum(sum(status.errors.values()) for status in trace.statuses)
    if name.endswith(OUTPUT_ONLY):
        return found
    rows = trace.draft.to_pylist()
    steps = trace.step.to_pylist()
    found |= {
        "execution": sorted({row["execution"] for row in rows}),
        "strategy": sorted({row["strategy"] for row in rows}),
        "problems": list(trace.problems),
        "gpu_draft_ms": _middle([s["gpu_draft_s"] for s in steps]),
        "gpu_probe_ms": _middle([s["gpu_probe_s"] for s in steps]),
        "accepted": sum(v["accepted"] for v in trace.verify.to_pylist()),
        "drafted": sum(v["drafted"] for v in trace.verify.to_pylist()),
        **asdict(compare(outcome, rounded="bf16" in name)),
    }
    return found


def _middle(values: list[float | None]) -> float | None:
    known = sorted(v for v in values if v is not None)
    return known[len(known) // 2] * 1000 if known else None


def faults(name: str, found: dict[str, Any]) -> list[str]:
    """Return the deviations of this engine's recording from the truth; [] if there are none."""
    if "error" in found:
        return ["did not run"]
    if "raising" in name and not found["errors"]:
        return ["no hook failed"]
    if "mass_error" not in found:
        return []
    wrong = []
    # Written as `not <=`, so that a NaN fails too.
    if not found["mass_error"] <= MASS_ERROR[name[:4]]:
        wrong.append(f"mass error {found['mass_error']:.1e}")
    if found["accepted"] != found["accepted_by_vllm"]:
        wrong.append(f"{found['accepted']} accepted, vLLM says {found['accepted_by_vllm']}")
    # In bf16 the engine itself drafts other tokens than float64 where two are almost equally
    # likely.
    if name.startswith("fp32") and found["drafted_equal"] != found["chains"]:
        wrong.append(f"{found['chains'] - found['drafted_equal']} chains drafted otherwise")
    if name.startswith("fp32") and found["accepted_equal"] != found["verified"]:
        wrong.append(f"{found['verified'] - found['accepted_equal']} counts differ")
    if not found["chains"]:
        wrong.append("nothing recorded")
    return wrong + list(found["problems"])


def run(
    name: str, job: Job, folder: Path, logs: Path | None, keep: Path | None, core: str
) -> dict[str, Any]:
    """Run one engine and return its results; an error is part of them."""
    began = time.time()
    try:
        outcome = run_job(job, folder, core)
        if keep is not None and job.probe:
            shutil.copytree(outcome.run, keep / name.replace(" ", "-"))
        found = _examine(name, outcome)
    except Exception:
        found = {"error": traceback.format_exc()[-4000:]}
    if logs is not None and (folder / "log.txt").exists():
        text = (folder / "log.txt").read_text(errors="replace")
        (logs / f"{name.replace(' ', '-')}.txt").write_text(text[-60_000:])
        for status in folder.glob("run/status-*"):
            found.setdefault("status", []).append(json.loads(status.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    return {**found, "seconds": round(time.time() - began, 1)}


def same_tokens(name: str, results: dict[str, dict[str, Any]]) -> bool | None:
    """Return whether an engine generated the tokens of the one without the probe; None if none was
    run."""
    base = results.get(f"{name.rsplit(' ', 1)[0]} off") or results.get(f"{name} off") or {}
    if "tokens_sha256" not in base or "tokens_sha256" not in results[name]:
        return None
    return bool(base["tokens_sha256"] == results[name]["tokens_sha256"])


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """Print one line per engine."""
    for name, t in results.items():
        if "error" in t:
            print(f"{name:28} FAILED {t['seconds']} s: {t['error'][-300:]!r}")
        elif "mass_error" not in t:
            same = same_tokens(name, results)
            failed = (
                f"{t['errors']} hooks failed, same-tokens {same}" if "errors" in t else "no probe"
            )
            print(f"{name:28} {failed}, {t['seconds']} s {', '.join(faults(name, t))}")
        else:
            print(
                f"{name:28} {'+'.join(t['execution'])} {'+'.join(t['strategy'])} "
                f"chains {t['chains']} drafted= {t['drafted_equal']} accepted= "
                f"{t['accepted_equal']}/{t['verified']} mass {t['mass_error']:.1e} rms "
                f"{t['rms_error']:.1e} top1 {t['top1_error']:.1e} same-tokens "
                f"{same_tokens(name, results)} draft {t['gpu_draft_ms']} probe "
                f"{t['gpu_probe_ms']} ms, {t['seconds']} s {', '.join(faults(name, t))}"
            )


def judge(results: dict[str, dict[str, Any]]) -> tuple[bool, str]:
    """Return whether all engines passed, and a one-line verdict."""
    wrong = {name: why for name, found in results.items() if (why := faults(name, found))}
    wrong |= {n: ["other tokens than without"] for n in results if same_tokens(n, results) is False}
    errors = [found["mass_error"] for found in results.values() if "mass_error" in found]
    words = f"{len(results)} engines, largest mass error {max(errors, default=float('nan')):.1e}"
    told = "; ".join(f"{name}: {', '.join(why)}" for name, why in wrong.items())
    return not wrong, f"{words}; {told}" if told else words


def main() -> None:
    options = _parser().parse_args()
    jobs = {
        name: job
        for name, job in JOBS[options.device].items()
        if not options.names or any(part in name for part in options.names)
    }
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    file = ResultsFile(options.json, options.device, again=options.again)
    kept = file.facts.get("engines", {})
    results = {name: found for name, found in kept.items() if "error" not in found}
    root, deadline = (
        Path(tempfile.mkdtemp(prefix="driftscope-cuda-")),
        time.time() + options.seconds,
    )
    os.environ.setdefault("OMP_NUM_THREADS", "2")

    def one(name: str, job: Job) -> dict[str, Any] | None:
        if time.time() > deadline:
            return None
        return run(name, job, root / name.replace(" ", "-"), options.logs, options.keep, "0")

    with ThreadPoolExecutor(options.side_by_side or SIDE_BY_SIDE[options.device]) as pool:
        todo = {n: job for n, job in jobs.items() if n not in results}
        pending = {name: pool.submit(one, name, job) for name, job in todo.items()}
        for name, future in pending.items():
            if (found := future.result()) is not None:
                results[name] = found
                print(f"{name}: {found['seconds']} s", flush=True)
                file.write(engines=results)
    print_table(results)
    ok, verdict = judge(results)
    complete = all(name in results for name in jobs)
    file.write(complete=complete, ok=ok, verdict=verdict, engines=results)
    print(verdict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", choices=list(JOBS), default="cuda")
    parser.add_argument("--json", type=Path, help="written after each engine, and taken up again")
    parser.add_argument("--again", action="store_true", help="run what the file has again")
    parser.add_argument("--seconds", type=float, default=3600, help="start no engine after these")
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the run directories")
    parser.add_argument("--side-by-side", type=int)
    return parser


if __name__ == "__main__":
    main()
