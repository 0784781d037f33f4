"""The probe on a GPU against the float64 reference: dtypes, backends, runners, graphs, strategies.

PYTHONPATH=tests:$PYTHONPATH python3 benchmarks/cuda/truth.py [--json FILE] [--logs DIR] [NAME ...]

NAME picks the engines whose name contains it. Needs a CUDA GPU and a vLLM; see README.md here.
"""

from __future__ import annotations

import argparse
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

from vllm_engine.job import Job, Outcome, run_job
from vllm_engine.truth import compare

from driftscope.trace.reader import read_trace

SIDE_BY_SIDE = 6
RECORD = {"TOKEN_IDS": "1", "EVERY": "1"}
FP32 = {"dtype": "float32", "attention_backend": "TRITON_ATTN"}
BF16 = {"dtype": "bfloat16", "attention_backend": "FLASH_ATTN"}
BF16_TRITON = {"dtype": "bfloat16", "attention_backend": "TRITON_ATTN"}
MEMORY = {"gpu_memory_utilization": 0.08, "kv_cache_memory_bytes": 1 << 30, "max_num_seqs": 8}


def _job(runner: str, graphs: bool, llm: dict[str, Any], drafter: str = "eagle31",
         **probe: str) -> Job:  # fmt: skip
    return Job(
        drafter=drafter, runner=runner, compiled=graphs, device="cuda", processes=True,
        llm={**MEMORY, **llm}, probe={**RECORD, **probe},
    )  # fmt: skip


def _off(job: Job) -> Job:
    return replace(job, probe={})


JOBS = {
    "fp32 v2 graphs": _job("v2", True, FP32),
    "fp32 v1 graphs": _job("v1", True, FP32),
    "bf16 v2 graphs lse": _job("v2", True, BF16),
    "bf16 v1 graphs lse": _job("v1", True, BF16),
    "fp32 v2 graphs off": _off(_job("v2", True, FP32)),
    "fp32 v2 eager": _job("v2", False, FP32),
    "fp32 v1 eager": _job("v1", False, FP32),
    "bf16 v2 graphs keys": _job("v2", True, BF16, STRATEGY="keys"),
    "bf16 v2 graphs triton-attn": _job("v2", True, BF16_TRITON),
    "bf16 v2 graphs off": _off(_job("v2", True, BF16)),
    "fp32 v2 graphs eagle3": _job("v2", True, FP32, "eagle3"),
    "bf16 v1 graphs off": _off(_job("v1", True, BF16)),
    "bf16 v2 shadow": _job("v2", True, BF16, RECORDING="shadow"),
    "bf16 v2 sampled eager": _job("v2", True, BF16, RECORDING="eager"),
    "bf16 v1 shadow": _job("v1", True, BF16, RECORDING="shadow"),
    "fp32 v1 graphs off": _off(_job("v1", True, FP32)),
    "bf16 v2 eager lse": _job("v2", False, BF16),
    "fp32 v2 per head": _job("v2", True, FP32, PER_HEAD="1"),
}


def _examine(name: str, outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {"tokens": outcome.tokens(), "metrics": outcome.metrics}
    if not outcome.job.probe:
        return found
    trace = read_trace(outcome.run)
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
        "truth": asdict(compare(outcome, rounded="bf16" in name)),
    }
    return found


def _middle(values: list[float | None]) -> float | None:
    known = sorted(v for v in values if v is not None)
    return known[len(known) // 2] * 1000 if known else None


def run(name: str, folder: Path, logs: Path | None, keep: Path | None, core: str) -> dict[str, Any]:
    """One engine and what came of it; an error is part of the answer."""
    began = time.time()
    try:
        outcome = run_job(JOBS[name], folder, core)
        if keep is not None and outcome.job.probe:
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


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """A line per engine."""
    for name, found in results.items():
        if "error" in found:
            print(f"{name:28} FAILED {found['seconds']} s: {found['error'][-300:]!r}")
            continue
        base = results.get(f"{name.rsplit(' ', 1)[0]} off") or results.get(f"{name} off") or {}
        same = found["tokens"] == base["tokens"] if "tokens" in base else "-"
        if "truth" not in found:
            print(f"{name:28} no probe, {found['seconds']} s")
            continue
        t = found["truth"]
        print(
            f"{name:28} {'+'.join(found['execution'])} {'+'.join(found['strategy'])} "
            f"chains {t['chains']} drafted= {t['drafted_equal']} accepted= {t['accepted_equal']}/"
            f"{t['verified']} mass {t['mass_error']:.1e} rms {t['rms_error']:.1e} "
            f"top1 {t['top1_error']:.1e} same-tokens {same} draft {found['gpu_draft_ms']} "
            f"probe {found['gpu_probe_ms']} ms, {found['seconds']} s {found['problems']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the run directories")
    parser.add_argument("--side-by-side", type=int, default=SIDE_BY_SIDE)
    options = parser.parse_args()
    wanted = [n for n in JOBS if not options.names or any(o in n for o in options.names)]
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="driftscope-cuda-"))
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    with ThreadPoolExecutor(options.side_by_side) as pool:
        pending = {
            name: pool.submit(
                run, name, root / name.replace(" ", "-"), options.logs, options.keep, "0"
            )
            for name in wanted
        }
        results = {}
        for name, future in pending.items():
            results[name] = future.result()
            print(f"{name}: {results[name]['seconds']} s", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1, default=str))
    print_table(results)


if __name__ == "__main__":
    main()
