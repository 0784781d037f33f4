"""Run minutes of mixed traffic at full recording, to detect memory growth and dropped rows.

One engine (Llama-3.1-8B's shape with dummy weights; on a CPU the tiny trio) records every round
while prompts of several lengths arrive at several temperatures and some are aborted. The resident
memory of each process of the engine and the GPU's memory are read once a second. After a quarter of
the time, in which caches fill, a line is fitted to the means of ten blocks, because neighbouring
samples are not independent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from scipy import stats

from benchmarks.engines import QUIET, options
from benchmarks.results_file import ResultsFile, gpu_used_bytes
from driftscope.trace.reader import read_trace

SECONDS = {"cuda": 180, "cpu": 20}
K = {"cuda": 4, "cpu": 8}
WARM_UP = 0.25
"""Share of the time that is left out: prefix cache, allocators and lazy imports fill up in it."""
BLOCKS = 10
CONFIDENCE = 0.95
RESOLVED_BYTES = 2_000_000
"""Smallest rise over the fitted time that is called growth, in bytes: a record batch and glibc's
arenas are allocated and freed in pieces of about a megabyte (M_MMAP_THRESHOLD grows to 32 MiB,
M_TRIM_THRESHOLD to twice that)."""
TRAFFIC: dict[str, dict[str, Any]] = {
    "cpu": {"concurrency": 8, "prompts": (20, 120, 400, 900), "outputs": (1, 16, 96)},
    "cuda": {"concurrency": 64, "prompts": (200, 1000, 4000), "outputs": (1, 64, 400)},
}
"""Device -> number of concurrent requests, and the lengths from which they are drawn."""
CPU_BLOCKS = 96
"""Number of cache blocks of 128 tokens: what the requests need and little more. A CPU's cache
becomes resident block by block as the prefix cache uses new blocks, which looks like a leak until
all are used."""
TEMPERATURES = (0.0, 0.7, 1.0)
ABORTED_SHARE = 0.15


def rss_bytes(pid: int) -> dict[str, int]:
    """Return the resident bytes of a process and each of its descendants, by name and pid."""
    found: dict[str, int] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                title = _short(" ".join(process.cmdline()))
                found[f"{title} {process.pid}"] = process.memory_info().rss
    return found


def _short(title: str) -> str:
    """Return a short process name; vLLM names its own processes."""
    if "VLLM::" in title:
        return title[title.index("VLLM::") :].split()[0]
    helpers = ("resource_tracker", "forkserver", "spawn_main")
    return next((name for name in helpers if name in title), (title.split() or ["unnamed"])[0])


def growth(times: Sequence[float], values: Sequence[float]) -> dict[str, Any] | None:
    """Return the slope in bytes per second with its interval, and whether it counts as growth.

    None with fewer than two samples per block.
    """
    if len(times) < 2 * BLOCKS:
        return None
    size = len(times) / BLOCKS
    cuts = [round(i * size) for i in range(BLOCKS + 1)]
    blocks = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    at = [statistics.fmean(times[one]) for one in blocks]
    level = [statistics.fmean(values[one]) for one in blocks]
    fit = stats.linregress(at, level)
    # A constant series is fitted with a standard error of 0, for which scipy returns NaN.
    error = 0.0 if len(set(level)) == 1 else float(fit.stderr)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, BLOCKS - 2)) * error
    low, high = fit.slope - half, fit.slope + half
    window = times[-1] - times[0]
    return {
        "bytes_per_s": fit.slope,
        "interval": (low, high),
        "first_bytes": level[0],
        "last_bytes": level[-1],
        "window_s": window,
        "grows": bool(low > 0 and fit.slope * window > RESOLVED_BYTES),
    }


def serve(device: str, folder: Path, deadline: float) -> dict[str, Any]:
    """Run the traffic, until the deadline at most; return samples by series, and the counts of the
    child."""
    job = folder / "job.json"
    job.write_text(json.dumps({**_job(device, folder), "deadline": deadline}))
    env = {**os.environ, **QUIET}
    if device == "cpu":
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    env |= {"DRIFTSCOPE_TRACE": str(folder / "run"), "DRIFTSCOPE_EVERY": "1"}
    log = folder / "log.txt"
    samples: dict[str, list[tuple[float, float]]] = {}
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-P", __file__, str(job)], env=env, stdout=sink, stderr=sink
        )
        began = None
        while child.poll() is None:
            time.sleep(1)
            if began is None and (folder / "ready").exists():
                began = time.time()
            if began is not None and not (folder / "done").exists():
                series: dict[str, float] = dict(rss_bytes(child.pid))
                if device == "cuda" and (used := gpu_used_bytes()) is not None:
                    series["GPU"] = used
                for name, value in series.items():
                    samples.setdefault(name, []).append((time.time() - began, value))
    if child.returncode or not (folder / "done").exists():
        end = log.read_text(errors="replace")[-4000:]
        raise SystemExit(f"the engine ended with {child.returncode}:\n{end}")
    return {"counts": json.loads((folder / "done").read_text()), "samples": samples}


def _job(device: str, folder: Path) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {
        "cpu": {"max_model_len": 1100, "num_gpu_blocks_override": CPU_BLOCKS},
        "cuda": {
            "max_model_len": 16_000,
            "gpu_memory_utilization": 0.4,
            "kv_cache_memory_bytes": 24_000_000_000,
        },
    }
    at_once = TRAFFIC[device]["concurrency"]
    return {
        "llm": options(folder, device, K[device], max_num_seqs=at_once, **own[device]),
        "vocabulary": 1000 if device == "cpu" else 100_000,
        "seconds": SECONDS[device],
        **TRAFFIC[device],
    }


def recorded(run: Path) -> dict[str, Any]:
    """Return the recording's counts from the status files."""
    trace = read_trace(run)
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("rows", "dropped", "errors")}
    for status in trace.statuses:
        for name, total in counts.items():
            total.update(getattr(status, name))
    return {
        **counts,
        "closed": all(status.closed for status in trace.statuses),
        "problems": list(trace.problems),
        "run_bytes": sum(path.stat().st_size for path in run.iterdir()),
    }


def judge(
    memory: dict[str, Any], trace: dict[str, Any], *, smoke: bool = False
) -> tuple[bool, str]:
    """Return whether all is well, and a verdict: "growth" or "no growth", and the losses. A smoke
    test is too short to detect growth, and need not."""
    growing = [name for name, fit in memory.items() if fit["grows"]]
    words = [f"growth: {', '.join(growing)}" if growing else "no growth"]
    ok = not growing and (smoke or bool(memory))
    if not memory:
        words = ["too short to tell growth"]
    lost, errors = sum(trace["dropped"].values()), sum(trace["errors"].values())
    words.append(f"{trace['rows'].get('draft', 0)} chains, {lost} dropped, {errors} errors")
    ok = ok and not lost and not errors and trace["rows"].get("draft", 0) > 0
    return ok, "; ".join(words)


async def _client(engine: Any, number: int, job: dict[str, Any], until: float) -> Counter[str]:
    """Send one request after another, each with its own length, temperature and abort."""
    from vllm import SamplingParams

    chance, counts = random.Random(number), Counter[str]()
    while time.time() < until:
        name = f"{number}-{counts['requests']}"
        length, size = chance.choice(job["prompts"]), job["vocabulary"]
        ids = [chance.randrange(100, size) for _ in range(length)]
        tokens = chance.choice(job["outputs"])
        aborted = tokens > 1 and chance.random() < ABORTED_SHARE
        temperature = chance.choice(TEMPERATURES)
        params = SamplingParams(
            temperature=temperature, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        written = await _request(engine, name, ids, params, tokens // 2 if aborted else None)
        counts.update(requests=1, aborted=int(aborted), prompt_tokens=length, output_tokens=written)
        counts[f"temperature {temperature}"] += 1
    return counts


async def _request(
    engine: Any, name: str, ids: list[int], params: Any, abort_after: int | None
) -> int:
    """Return the number of generated tokens; the client disconnects after `abort_after` of them."""
    written = 0
    stream = engine.generate({"prompt_token_ids": ids}, params, name)
    async for output in stream:
        written = len(output.outputs[0].token_ids)
        if abort_after is not None and written >= abort_after:
            await stream.aclose()
            break
    return written


async def _serve(folder: Path, job: dict[str, Any]) -> None:
    """Serve the traffic; the results are written to the folder of the job's file."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**job["llm"]))
    (folder / "ready").touch()
    until = min(time.time() + job["seconds"], job["deadline"])
    clients = [_client(engine, i, job, until) for i in range(job["concurrency"])]
    total: Counter[str] = sum(await asyncio.gather(*clients), Counter())
    partial = folder / "done.partial"
    partial.write_text(json.dumps(dict(sorted(total.items()))))
    partial.rename(folder / "done")
    engine.shutdown()


def run(file: ResultsFile, _out: Path, deadline: float) -> None:
    """Serve the traffic, and write what memory and recording did."""
    with tempfile.TemporaryDirectory(prefix="driftscope-long-") as name:
        folder = Path(name)
        found = serve(file.device, folder, deadline)
        trace = recorded(folder / "run")
    memory = {}
    for series, points in found["samples"].items():
        kept = [(t, v) for t, v in points if t >= WARM_UP * SECONDS[file.device]]
        if fit := growth([t for t, _ in kept], [v for _, v in kept]):
            memory[series] = fit
            low, high = fit["interval"]
            print(
                f"{series:28} {fit['first_bytes'] / 1e6:8.1f} -> {fit['last_bytes'] / 1e6:8.1f} "
                f"MB  {fit['bytes_per_s'] / 1e3:+8.2f} kB/s ({low / 1e3:+.2f} to "
                f"{high / 1e3:+.2f})"
            )
    smoke = file.device == "cpu"
    ok, verdict = judge(memory, trace, smoke=smoke)
    file.write(
        complete=True,
        ok=ok,
        verdict=f"CPU: {verdict}" if smoke else verdict,
        seconds=SECONDS[file.device],
        traffic=found["counts"],
        memory=memory,
        trace=trace,
        samples={s: [(round(t, 1), v) for t, v in p] for s, p in found["samples"].items()},
    )


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]).parent, json.loads(Path(sys.argv[1]).read_text())))
