"""What the probe costs on a GPU: TPOT and throughput by concurrency and context, interleaved.

python3 benchmarks/cuda/overhead.py [--json FILE] [--seconds N] [--shape trio] [--smoke]

Three engines of Llama-3.1-8B's shape (dummy weights) share one GPU and are asked in turn: one
without driftscope, one with it, whose sampling is changed between requests, and one without
driftscope that is kept from using CUDA graphs, which is what tools that hook modules do. Each ratio
is of neighbours in time. `--shape trio` takes the tiny trio, `--smoke` runs that anywhere. Any
installed vLLM will do; its version is in the file.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cuda import overhead_table as table
from benchmarks.cuda import shape
from benchmarks.engines import Engine, measure
from benchmarks.results_file import ResultsFile, read
from driftscope_lab.trio import trio_path

Points = tuple[tuple[int, int], ...]
SETTINGS = {
    "off": ("probe", {"stop": True}),
    "default": ("probe", {"budget": 0.01}),
    "every round": ("probe", {"every": 1}),
    "eager": ("eager", None),
}
"""Setting -> engine and what its sampler is set to; each is held against "absent"."""
POINTS: dict[str, Points] = {
    "llama-8b": (
        (1, 1000),
        (16, 1000),
        (1, 8000),
        (64, 1000),
        (4, 8000),
        (1, 32_000),
        (16, 8000),
        (4, 32_000),
        (1, 100_000),
        (4, 1000),
    ),
    "trio": ((1, 1000), (4, 1000), (16, 1000), (64, 1000), (1, 200), (64, 200)),
}
"""Shape -> (concurrency, context); what one engine's cache holds is the limit."""
SMOKE_POINTS = ((1, 64), (4, 200))
CACHE_BYTES = 24_000_000_000


def _options(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    if _tiny(options):
        target, drafter = trio_path() / "target", trio_path() / "eagle31"
        own: dict[str, Any] = {"max_model_len": 1200, "max_num_seqs": 64}
        # Eager: what a smoke shows is not worth three compilations on a CPU.
        smoke = {"dtype": "float32", "max_num_seqs": 8, "enforce_eager": True}
        own |= (
            smoke
            if options.smoke
            else {
                "attention_backend": "FLASH_ATTN",
                "gpu_memory_utilization": 0.1,
                "kv_cache_memory_bytes": 1 << 30,
            }
        )
    else:
        target, drafter = shape.write(folder)
        own = {
            "load_format": "dummy",
            "max_model_len": 104_000,
            "max_num_seqs": 64,
            "kv_cache_memory_bytes": CACHE_BYTES,
            "gpu_memory_utilization": 0.3,
            "attention_backend": "FLASH_ATTN",
        }
    return {
        "model": str(target),
        "skip_tokenizer_init": True,
        "enable_prefix_caching": True,
        **own,
        "speculative_config": {
            "method": "eagle3",
            "model": str(drafter),
            "num_speculative_tokens": options.k,
        },
    }


def _tiny(options: argparse.Namespace) -> bool:
    return bool(options.shape == "trio")


def _start(folder: Path, asked: argparse.Namespace) -> dict[str, Engine]:
    options = _options(folder, asked)
    base = {
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    if asked.smoke:
        # Three engines' default caches do not fit beside each other on a small machine.
        base["VLLM_CPU_KVCACHE_SPACE"] = "1"
    probe = {"DRIFTSCOPE_TRACE": str(folder / "run"), "DRIFTSCOPE_EVERY": "1"}
    made = {
        "absent": ({}, {"DRIFTSCOPE_DISABLE": "1"}),
        "probe": ({}, probe),
        "eager": ({"enforce_eager": True}, {"DRIFTSCOPE_DISABLE": "1"}),
    }
    engines = {}
    for name, (extra, env) in made.items():
        log = folder / f"{name}.log"
        engines[name] = Engine(name, {**options, **extra}, {**base, **env}, log)
    for engine in engines.values():
        engine.ask()
    return engines


def _prompts(concurrency: int, context: int, vocabulary: int) -> list[list[int]]:
    chance = random.Random(concurrency * 1_000_003 + context)
    return [[chance.randrange(100, vocabulary) for _ in range(context)] for _ in range(concurrency)]


def run(points: Points, options: argparse.Namespace, file: ResultsFile) -> list[dict[str, Any]]:
    """Measure the points that the file lacks, and write it after each."""
    deadline = time.time() + options.seconds
    records: list[dict[str, Any]] = file.facts.get("records", [])
    have = {(r["concurrency"], r["context"]) for r in records}
    todo = [point for point in points if point not in have]
    if not todo:
        return records
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as name:
        engines = _start(Path(name), options)
        print(f"engines ready, {deadline - time.time():.0f} s left", flush=True)
        for point in todo:
            # One point at least, so that starting again and again gets on.
            if point != todo[0] and time.time() > deadline:
                print(f"out of time before {point}: the same command goes on from here")
                break
            prompts = _prompts(*point, vocabulary=1000 if _tiny(options) else 100_000)
            records.append(
                measure(
                    engines, point, options.repeats, options.tokens, prompts, SETTINGS, deadline
                )
            )
            print("\n".join(table.points(records[-1:])), flush=True)
            file.write(k=options.k, shape=options.shape, records=records)
        for engine in engines.values():
            engine.close()
    return records


def show(records: list[dict[str, Any]]) -> None:
    print("Ratios to an engine without driftscope: median of paired repeats (least-most)")
    print("\n".join(table.points(records)))
    print("What is added to TPOT, by context: median (its 95% interval; least to most of under 6)")
    print("\n".join(table.context_lines(records)) or "one context only")


def judge(records: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether the goals hold wherever they could be seen to fail, and a line of words."""
    over, rows = table.over_goal(records), list(table.by_context(records))
    growing = [f"{r['setting']} at {r['concurrency']}" for r in rows if r["growth"] == "grows"]
    words = [f"{len(records)} points", f"above the goal: {', '.join(over) or 'none'}"]
    words.append(f"cost grows with context: {', '.join(growing) or 'nowhere'}")
    return not over and not growing, "; ".join(words)


def main() -> None:
    options = _parser().parse_args()
    if options.show:
        show(read(options.show)["records"])
        return
    if options.smoke:
        options.shape, options.repeats = "trio", min(options.repeats, 3)
    points = SMOKE_POINTS if options.smoke else POINTS[options.shape]
    file = ResultsFile(options.json, "cpu" if options.smoke else "cuda", again=options.again)
    records = run(points, options, file)
    complete = len(records) >= len(points)
    ok, verdict = judge(records)
    if options.smoke:
        # The tiny trio on a CPU: the code runs, the goals are a GPU's.
        ok, verdict = bool(records), f"{len(records)} points ran; goals are not judged on a CPU"
    facts = {"k": options.k, "shape": options.shape, "records": records}
    rows = list(table.by_context(records))
    file.write(complete=complete, ok=ok, verdict=verdict, **facts, cost_by_context=rows)
    show(records)
    print(verdict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="written after each point, and taken up again")
    parser.add_argument("--again", action="store_true", help="measure what the file has again")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print a file's tables, no more")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--shape", choices=list(POINTS), default="llama-8b")
    parser.add_argument("--smoke", action="store_true", help="the tiny trio, anywhere")
    return parser


if __name__ == "__main__":
    main()
