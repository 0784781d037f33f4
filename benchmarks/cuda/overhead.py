"""Measure the probe's cost on a GPU: TPOT and throughput by concurrency and context, interleaved.

python3 benchmarks/cuda/overhead.py [--json FILE] [--seconds N] [--shape trio] [--smoke]

Two engines of Llama-3.1-8B's shape (dummy weights) share one GPU and are measured in turn: one
without driftscope, and one with it, whose sampling is changed between requests. With `--eager`
there is a third, without driftscope and without CUDA graphs, as with tools that hook modules. Each
ratio is of measurements adjacent in time. `--runner v1` or `v2` chooses vLLM's model runner.
`--profile DIR` leaves a timeline of one engine's worker there, with the probe stopped and with
every round recorded, and the times of its kernels in the file. `--wait FILE` starts the engines and
measures once FILE is there. `--shape trio` uses the tiny trio, and `--smoke` runs that on any
machine. Any installed vLLM will do; its version is in the file. `--timeline FILE` only sums up what
the probe's kernels take in a timeline that `--profile` left.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.engines import Engine, measure, median_interval, ratios, write_llama_shape
from benchmarks.results_file import ResultsFile, read
from driftscope.trace.reader import read_trace
from driftscope_lab.trio import trio_path

Interval = tuple[float, float]
GOALS = {"off": 0.005, "default": 0.005, "every round": 0.01}
"""Setting -> largest share of TPOT that it may cost, at every point."""


def points(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield two lines per point: TPOT and throughput, as ratios to an engine without driftscope."""
    for record in sorted(records, key=lambda r: (r["concurrency"], r["context"])):
        head = f"x{record['concurrency']:<3} context {record['context']:7}"
        absent = statistics.median(record["tpot_s"]["absent"])
        yield f"{head}  TPOT   {absent * 1000:9.3f} ms  {_cells(record, 'tpot_s')}"
        # The first results do not include throughput.
        if "tokens_per_s" in record:
            absent = statistics.median(record["tokens_per_s"]["absent"])
            yield f"{'':{len(head)}}  tokens {absent:8.0f} /s  {_cells(record, 'tokens_per_s')}"


def over_goal(records: list[dict[str, Any]]) -> list[str]:
    """Return the settings and points whose median interval lies entirely above the allowed cost."""
    found = []
    for record in records:
        for name, goal in GOALS.items():
            low, _ = median_interval(ratios(record, name))
            if low > 1 + goal:
                found.append(f"{name} at {record['concurrency']} x {record['context']}")
    return found


def by_context(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, by concurrency and setting, the addition to TPOT at the smallest and largest context.

    `growth` is "flat" if the two intervals overlap.
    """
    for concurrency in sorted({r["concurrency"] for r in records}):
        same = sorted(
            (r for r in records if r["concurrency"] == concurrency), key=lambda r: r["context"]
        )
        if len(same) < 2:
            continue
        for name in GOALS:
            (low, low_at), (high, high_at) = (_added(one, name) for one in (same[0], same[-1]))
            growth = _growth(low_at, high_at)
            yield {
                "concurrency": concurrency,
                "setting": name,
                "contexts": (same[0]["context"], same[-1]["context"]),
                "added_s": (low, high),
                "added_interval_s": (low_at, high_at),
                "growth": growth,
            }


def context_lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line per row of `by_context`."""
    for row in by_context(records):
        cells = [
            f"{added * 1e6:+.0f} us ({low * 1e6:+.0f} to {high * 1e6:+.0f}) at {context}"
            for context, added, (low, high) in zip(
                row["contexts"], row["added_s"], row["added_interval_s"], strict=True
            )
        ]
        yield f"x{row['concurrency']:<3} {row['setting']:12} {row['growth']}: {', '.join(cells)}"


def _cells(record: dict[str, Any], figure: str) -> str:
    cells = []
    for name in record[figure]:
        if name == "absent" or not (found := ratios(record, name, figure)):
            continue
        cells.append(f"{name} {statistics.median(found):.3f} ({min(found):.3f}-{max(found):.3f})")
    return "  ".join(cells)


def _growth(at_least: Interval, at_most: Interval) -> str:
    """Return the growth from the smallest context to the largest: "grows", "falls" or "flat"."""
    if at_most[0] > at_least[1]:
        return "grows"
    return "falls" if at_most[1] < at_least[0] else "flat"


def _added(record: dict[str, Any], name: str) -> tuple[float, Interval]:
    """Return the time that a setting adds to TPOT, in seconds, paired by repeat: median and its
    interval."""
    pairs = zip(record["tpot_s"][name], record["tpot_s"]["absent"], strict=False)
    added = [a - b for a, b in pairs]
    return statistics.median(added), median_interval(added)


Points = tuple[tuple[int, int], ...]
SETTINGS = {
    "off": ("probe", {"stop": True}),
    "default": ("probe", {"budget": 0.01}),
    "every round": ("probe", {"every": 1}),
    "eager": ("eager", None),
}
"""Setting -> engine and sampler settings; each is compared with "absent"."""
POINTS: dict[str, Points] = {
    "llama-8b": (
        (1, 1000),
        (8, 1000),
        (64, 1000),
        (1, 8000),
        (8, 8000),
    ),
    "trio": ((1, 1000), (4, 1000), (16, 1000), (64, 1000), (1, 200), (64, 200)),
}
"""Shape -> (concurrency, context); the cache of one engine is the limit."""
SMOKE_POINTS = ((1, 64), (4, 200))
CACHE_BYTES = 12_000_000_000
"""An engine's KV cache: 91,000 tokens of the 8B shape, so that two engines fit into 78 GiB."""
PROFILED = ((1, 1000), (64, 1000))
"""Concurrency and context of the timelines."""
PROFILED_TOKENS = 17
MEASURED = ("k", "shape", "runner", "records", "timelines", "recorded")
"""Facts of the results file that the measurements write."""


def _options(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    if _tiny(options):
        target, drafter = trio_path() / "target", trio_path() / "eagle31"
        own: dict[str, Any] = {"max_model_len": 1200, "max_num_seqs": 64}
        # Eager: a smoke test is not worth three compilations on a CPU.
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
        target, drafter = write_llama_shape(folder)
        own = {
            "load_format": "dummy",
            "max_model_len": 12_000,
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
        # The default caches of three engines do not fit into the memory of a small machine.
        base["VLLM_CPU_KVCACHE_SPACE"] = "1"
    if asked.runner:
        base["VLLM_USE_V2_MODEL_RUNNER"] = str(int(asked.runner == "v2"))
    probe = {"DRIFTSCOPE_TRACE": str(folder / "run"), "DRIFTSCOPE_EVERY": "1"}
    made: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "absent": ({}, {"DRIFTSCOPE_DISABLE": "1"}),
        "probe": ({}, probe),
    }
    if asked.eager:
        made["eager"] = ({"enforce_eager": True}, {"DRIFTSCOPE_DISABLE": "1"})
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
    """Measure the points that are missing from the file, and write it after each."""
    deadline = time.time() + options.seconds
    records: list[dict[str, Any]] = file.facts.get("records", [])
    have = {(r["concurrency"], r["context"]) for r in records}
    todo = [point for point in points if point not in have]
    if not todo:
        return records
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as name:
        engines = _start(Path(name), options)
        print(f"engines ready, {deadline - time.time():.0f} s left", flush=True)
        _wait_for(options.wait, deadline)
        settings = {n: s for n, s in SETTINGS.items() if s[0] in engines}
        for point in todo:
            # Measure at least one point, so that repeated starts make progress.
            if point != todo[0] and time.time() > deadline:
                print(f"out of time before {point}: the same command goes on from here")
                break
            prompts = _prompts(*point, vocabulary=1000 if _tiny(options) else 100_000)
            records.append(
                measure(
                    engines, point, options.repeats, options.tokens, prompts, settings, deadline
                )
            )
            print("\n".join(points(records[-1:])), flush=True)
            file.write(**_facts(options), records=records)
        if options.profile is not None:
            timelines = _timelines(engines["probe"], options.profile, options)
            file.write(**_facts(options), records=records, timelines=timelines)
        for engine in engines.values():
            engine.close()
        recorded = _recorded(Path(name) / "run")
        file.write(**{**_told(file), "recorded": recorded})
    return records


def _told(file: ResultsFile) -> dict[str, Any]:
    """Return what the file holds of the measurements."""
    return {name: file.facts[name] for name in MEASURED if name in file.facts}


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    return {"k": options.k, "shape": options.shape, "runner": options.runner or "vLLM's own choice"}


def _wait_for(path: Path | None, deadline: float) -> None:
    while path is not None and not path.exists() and time.time() < deadline:
        time.sleep(0.2)


def _timelines(engine: Engine, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what a profile of the engine's worker sums up, with the probe stopped and recording
    every round; the timelines are left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for point in PROFILED:
        prompts = _prompts(*point, vocabulary=1000 if _tiny(options) else 100_000)
        for name in ("off", "every round"):
            engine.ask(set=SETTINGS[name][1])
            path = folder / f"{name.replace(' ', '-')}-{point[0]}x{point[1]}.json.gz"
            answer = engine.ask(prompts=prompts, tokens=PROFILED_TOKENS, calls=1, profile=str(path))
            found.append({"setting": name, "concurrency": point[0], "context": point[1], **answer})
    return found


def _recorded(run: Path) -> dict[str, Any]:
    """Return how much the probe recorded, dropped and failed at, by its last word."""
    statuses = read_trace(run).statuses
    return {
        name: sum(sum(getattr(status, name).values()) for status in statuses)
        for name in ("rows", "dropped", "errors")
    }


def show(records: list[dict[str, Any]]) -> None:
    print("Ratios to an engine without driftscope: median of paired repeats (least-most)")
    print("\n".join(points(records)))
    print("What is added to TPOT, by context: median (its 95% interval; least to most of under 6)")
    print("\n".join(context_lines(records)) or "one context only")


def judge(records: list[dict[str, Any]]) -> tuple[bool, str]:
    """Return whether the goals hold wherever a violation could be detected, and a one-line
    verdict."""
    over, rows = over_goal(records), list(by_context(records))
    growing = [f"{r['setting']} at {r['concurrency']}" for r in rows if r["growth"] == "grows"]
    words = [f"{len(records)} points", f"above the goal: {', '.join(over) or 'none'}"]
    words.append(f"cost grows with context: {', '.join(growing) or 'nowhere'}")
    return not over and not growing, "; ".join(words)


OURS = (
    "clear_chain",
    "enter_forward",
    "measure_state",
    "leave_forward",
    "_partial",
    "_combine",
)
"""Names of the probe's kernels."""
ONCE = "_partial"
"""Kernel that runs once a recorded round, for a drafter with one layer."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
NAME = 60


def device_events(path: Path) -> list[dict[str, Any]]:
    """Return what the device did, in order: name, start and duration in microseconds."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kept = [
        {"name": each["name"][:NAME], "start_us": each["ts"], "us": each["dur"]}
        for each in events
        if each.get("ph") == "X" and each.get("cat") in ON_DEVICE
    ]
    return sorted(kept, key=lambda each: float(each["start_us"]))


def summary(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the probe's time per recorded round, by kernel, and the middle round's events."""
    at = [number for number, each in enumerate(events) if each["name"] == ONCE]
    total: dict[str, list[float]] = defaultdict(list)
    for each in events[at[0] + 1 : at[-1] + 1]:
        if each["name"] in OURS:
            total[each["name"]].append(each["us"])
    rounds = len(at) - 1
    middle = len(at) // 2
    first, last = at[middle - 1] + 1, at[middle]
    begun = events[first]["start_us"]
    return {
        "rounds": rounds,
        "us_per_round": {
            name: {"launches": len(spent) / rounds, "us": round(sum(spent) / rounds, 2)}
            for name, spent in sorted(total.items())
        },
        "one_round": [
            [each["name"], round(each["start_us"] - begun, 1), round(each["us"], 1)]
            for each in events[first : last + 3]
        ],
    }


def show_timeline(path: Path, output: Path | None) -> None:
    """Print what the probe's kernels take in a worker's timeline; keep it, with one recorded round,
    in a file.

    In the timeline every round is recorded. Kernels between two recorded rounds' masses are one
    round; the middle one is kept.
    """
    found = summary(device_events(path))
    for name, row in found["us_per_round"].items():
        print(f"{name:10} {row['launches']:5.1f} launches a round {row['us']:7.2f} us")
    print(f"{sum(row['us'] for row in found['us_per_round'].values()):.1f} us a round")
    if output:
        output.write_text(json.dumps(found) + "\n")


def main() -> None:
    options = _parser().parse_args()
    if options.timeline:
        show_timeline(options.timeline, options.json)
        return
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
        # The tiny trio on a CPU only shows that the code runs; the goals are for a GPU.
        ok, verdict = bool(records), f"{len(records)} points ran; goals are not judged on a CPU"
    rows = list(by_context(records))
    file.write(
        complete=complete,
        ok=ok,
        verdict=verdict,
        **{**_facts(options), **_told(file)},
        cost_by_context=rows,
    )
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
    parser.add_argument("--runner", choices=("v1", "v2"), help="default: vLLM's own choice")
    parser.add_argument("--eager", action="store_true", help="an engine without CUDA graphs too")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="timelines of the worker")
    parser.add_argument("--timeline", type=Path, metavar="FILE", help="sum up a timeline")
    parser.add_argument("--wait", type=Path, metavar="FILE", help="measure once it is there")
    parser.add_argument("--smoke", action="store_true", help="the tiny trio, anywhere")
    return parser


if __name__ == "__main__":
    main()
