"""Run minutes of mixed traffic at full recording, to detect memory growth and dropped rows.

python3 benchmarks/cuda/long.py [--json FILE] [--seconds 300] [--device cpu] [--without-probe]

One engine (Llama-3.1-8B's shape with dummy weights; on a CPU, or with `--shape trio`, the tiny
trio) records every round while prompts of several lengths arrive at several temperatures and some
are aborted. The resident memory of each process of the engine and the GPU's memory are read once a
second. After a quarter of the time, in which caches fill, a line is fitted to the means of ten
blocks, because neighbouring samples are not independent. `--without-probe` measures vLLM alone
under the same traffic.
"""

from __future__ import annotations

import argparse
import asyncio
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

from scipy import stats

from benchmarks.engines import write_llama_shape
from benchmarks.results_file import ResultsFile, gpu_used_bytes
from driftscope.trace.reader import read_trace
from driftscope_lab.trio import trio_path

K = {"llama-8b": 4, "trio": 8}
WARM_UP = 0.25
"""Share of the time that is left out: prefix cache, allocators and lazy imports fill up in it."""
BLOCKS = 10
CONFIDENCE = 0.95
RESOLVED_BYTES = 2_000_000
"""Smallest rise over the fitted time that is called growth, in bytes: a record batch and glibc's
arenas are allocated and freed in pieces of about a megabyte (M_MMAP_THRESHOLD grows to 32 MiB,
M_TRIM_THRESHOLD to twice that)."""
TRAFFIC: dict[str, dict[str, Any]] = {
    "trio": {"concurrency": 8, "prompts": (20, 120, 400, 900), "outputs": (1, 16, 96)},
    "llama-8b": {"concurrency": 24, "prompts": (200, 1000, 4000, 12_000), "outputs": (1, 64, 400)},
}
"""Shape -> number of concurrent requests, and the lengths from which they are drawn."""
CPU_BLOCKS = 96
"""Number of cache blocks of 128 tokens: what the requests need and little more. A CPU's cache
becomes resident block by block as the prefix cache uses new blocks, which looks like a leak until
all are used."""
TEMPERATURES = (0.0, 0.7, 1.0)
ABORTED_SHARE = 0.15


def rss_bytes(pid: int) -> dict[str, int]:
    """Return the resident bytes of a process and each of its descendants, by name and pid."""
    found: dict[str, int] = {}
    todo = [pid]
    while todo:
        one = todo.pop()
        try:
            title = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
            for task in Path(f"/proc/{one}/task").glob("*/children"):
                todo += [int(child) for child in task.read_text().split()]
        except (OSError, ValueError):
            continue  # it has ended
        found[f"{_short(title)} {one}"] = pages * os.sysconf("SC_PAGE_SIZE")
    return found


def _short(title: str) -> str:
    """Return a short process name; vLLM names its own processes."""
    if "VLLM::" in title:
        return title[title.index("VLLM::") :].split()[0]
    for name in ("resource_tracker", "--job", "forkserver", "spawn_main"):
        if name in title:
            return "front end" if name == "--job" else name
    return title.split()[0] if title.split() else "unnamed"


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


def serve(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the traffic; return samples by series, and the counts of the child."""
    job = folder / "job.json"
    job.write_text(json.dumps(_job(options, folder)))
    env = {
        **os.environ,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    if options.device == "cpu":
        env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    if options.without_probe:
        env["DRIFTSCOPE_DISABLE"] = "1"
    else:
        env |= {"DRIFTSCOPE_TRACE": str(folder / "run"), "DRIFTSCOPE_EVERY": "1"}
    log = folder / "log.txt"
    samples: dict[str, list[tuple[float, float]]] = {}
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-P", __file__, "--job", str(job)], env=env, stdout=sink, stderr=sink
        )
        began = None
        while child.poll() is None:
            time.sleep(1)
            if began is None and (folder / "ready").exists():
                began = time.time()
            if began is not None and not (folder / "done").exists():
                series: dict[str, float] = dict(rss_bytes(child.pid))
                if options.device == "cuda" and (used := gpu_used_bytes()) is not None:
                    series["GPU"] = used
                for name, value in series.items():
                    samples.setdefault(name, []).append((time.time() - began, value))
    if child.returncode or not (folder / "done").exists():
        end = log.read_text(errors="replace")[-4000:]
        raise SystemExit(f"the engine ended with {child.returncode}:\n{end}")
    return {"counts": json.loads((folder / "done").read_text()), "samples": samples}


def _job(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    traffic = TRAFFIC[options.shape]
    if options.shape == "trio":
        target, drafter = trio_path() / "target", trio_path() / "eagle31"
        own: dict[str, Any] = {"max_model_len": 1100, "dtype": "float32"}
        if options.device == "cuda":
            own |= {
                "dtype": "bfloat16",
                "attention_backend": "FLASH_ATTN",
                "gpu_memory_utilization": 0.1,
                "kv_cache_memory_bytes": 1 << 30,
            }
        else:
            own |= {"enforce_eager": True, "num_gpu_blocks_override": CPU_BLOCKS}
    else:
        target, drafter = write_llama_shape(folder)
        own = {
            "load_format": "dummy",
            "max_model_len": 16_000,
            "attention_backend": "FLASH_ATTN",
            "gpu_memory_utilization": 0.4,
            "kv_cache_memory_bytes": 24_000_000_000,
        }
    return {
        "llm": {
            "model": str(target),
            "skip_tokenizer_init": True,
            "max_num_seqs": traffic["concurrency"],
            **own,
            "speculative_config": {
                "method": "eagle3",
                "model": str(drafter),
                "num_speculative_tokens": K[options.shape],
            },
        },
        "vocabulary": 1000 if options.shape == "trio" else 100_000,
        "seconds": options.seconds,
        "temperatures": TEMPERATURES,
        "aborted_share": ABORTED_SHARE,
        **traffic,
    }


def recorded(run: Path) -> dict[str, Any]:
    """Return the recording's counts from the status files."""
    trace = read_trace(run)
    return {
        "rows": _summed(status.rows for status in trace.statuses),
        "dropped": _summed(status.dropped for status in trace.statuses),
        "errors": _summed(status.errors for status in trace.statuses),
        "closed": all(status.closed for status in trace.statuses),
        "problems": list(trace.problems),
        "run_bytes": sum(path.stat().st_size for path in run.iterdir()),
    }


def _summed(counts: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            found[name] = found.get(name, 0) + count
    return found


def judge(
    memory: dict[str, Any], trace: dict[str, Any] | None, *, smoke: bool = False
) -> tuple[bool, str]:
    """Return whether all is well, and a verdict: "growth" or "no growth", and the losses. A smoke
    test is too short to detect growth, and need not."""
    growing = [name for name, fit in memory.items() if fit["grows"]]
    words = [f"growth: {', '.join(growing)}" if growing else "no growth"]
    ok = not growing and (smoke or bool(memory))
    if not memory:
        words = ["too short to tell growth"]
    if trace is not None:
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
        aborted = tokens > 1 and chance.random() < job["aborted_share"]
        temperature = chance.choice(job["temperatures"])
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
    until = time.time() + job["seconds"]
    clients = [_client(engine, i, job, until) for i in range(job["concurrency"])]
    total: Counter[str] = sum(await asyncio.gather(*clients), Counter())
    partial = folder / "done.partial"
    partial.write_text(json.dumps(dict(sorted(total.items()))))
    partial.rename(folder / "done")
    engine.shutdown()


def main() -> None:
    options = _parser().parse_args()
    if options.job:
        asyncio.run(_serve(options.job.parent, json.loads(options.job.read_text())))
        return
    options.shape = options.shape or ("trio" if options.device == "cpu" else "llama-8b")
    file = ResultsFile(options.json, options.device, again=True)
    with tempfile.TemporaryDirectory(prefix="driftscope-long-") as name:
        folder = Path(name)
        found = serve(options, folder)
        trace = None if options.without_probe else recorded(folder / "run")
    memory = {}
    for series, points in found["samples"].items():
        kept = [(t, v) for t, v in points if t >= WARM_UP * options.seconds]
        if fit := growth([t for t, _ in kept], [v for _, v in kept]):
            memory[series] = fit
            low, high = fit["interval"]
            print(
                f"{series:28} {fit['first_bytes'] / 1e6:8.1f} -> {fit['last_bytes'] / 1e6:8.1f} "
                f"MB  {fit['bytes_per_s'] / 1e3:+8.2f} kB/s ({low / 1e3:+.2f} to "
                f"{high / 1e3:+.2f})"
            )
    ok, verdict = judge(memory, trace, smoke=options.device == "cpu")
    if options.device == "cpu":
        verdict = f"CPU: {verdict}"
    file.write(
        complete=True,
        ok=ok,
        verdict=verdict,
        shape=options.shape,
        seconds=options.seconds,
        probe=not options.without_probe,
        traffic=found["counts"],
        memory=memory,
        trace=trace,
        samples={s: [(round(t, 1), v) for t, v in p] for s, p in found["samples"].items()},
    )
    print(verdict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=300, help="of traffic (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=list(TRAFFIC), help="default: trio on a CPU")
    parser.add_argument("--without-probe", action="store_true", help="vLLM alone")
    return parser


if __name__ == "__main__":
    main()
