"""Measure the probe's cost on a GPU: TPOT and throughput by concurrency and context, interleaved.

Two engines of Llama-3.1-8B's shape (dummy weights) share one GPU and are measured in turn: one
without driftscope, and one with it, whose sampling is changed between requests. Each ratio is of
measurements adjacent in time. Then a profile of the worker, with the probe stopped and with every
round recorded, leaves timelines in DIR/timelines, and what the probe's kernels take in the file. On
a CPU the tiny trio shows that the code runs.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.engines import (
    EngineChild,
    Settings,
    measure,
    median_interval,
    options,
    ratios,
    spread,
)
from benchmarks.results_file import ResultsFile
from driftscope.trace.reader import read_trace

Interval = tuple[float, float]
GOALS = {"off": 0.005, "default": 0.005, "every round": 0.01}
MANY, MANY_GOAL = 64, 0.03
"""Setting -> largest share of TPOT that it may cost; every round at MANY requests: MANY_GOAL."""


def point_lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield two lines per point: TPOT and throughput, as ratios to an engine without driftscope."""
    for record in sorted(records, key=lambda r: (r["concurrency"], r["context"])):
        head = f"x{record['concurrency']:<3} context {record['context']:7}"
        absent = statistics.median(record["tpot_s"]["absent"])
        yield f"{head}  TPOT   {absent * 1000:9.3f} ms  {_cells(record, 'tpot_s')}"
        absent = statistics.median(record["tokens_per_s"]["absent"])
        yield f"{'':{len(head)}}  tokens {absent:8.0f} /s  {_cells(record, 'tokens_per_s')}"


def over_goal(records: list[dict[str, Any]]) -> list[str]:
    """Return the settings and points whose median interval lies entirely above the allowed cost."""
    found = []
    for record in records:
        for name, goal in GOALS.items():
            low, _ = median_interval(ratios(record, name))
            if name == "every round" and record["concurrency"] >= MANY:
                goal = MANY_GOAL
            if low > 1 + goal:
                found.append(f"{name} at {record['concurrency']} x {record['context']}")
    return found


def by_context(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, by concurrency and setting, the addition to TPOT at the smallest and largest context.

    `growth` is "grows" or "falls" if the two intervals do not overlap, else "flat".
    """
    for concurrency in sorted({r["concurrency"] for r in records}):
        same = sorted(
            (r for r in records if r["concurrency"] == concurrency), key=lambda r: r["context"]
        )
        if len(same) < 2:
            continue
        for name in GOALS:
            (low, low_at), (high, high_at) = (_added(one, name) for one in (same[0], same[-1]))
            growth = "falls" if high_at[1] < low_at[0] else "flat"
            yield {
                "concurrency": concurrency,
                "setting": name,
                "contexts": (same[0]["context"], same[-1]["context"]),
                "added_s": (low, high),
                "added_interval_s": (low_at, high_at),
                "growth": "grows" if high_at[0] > low_at[1] else growth,
            }


def _added(record: dict[str, Any], name: str) -> tuple[float, Interval]:
    """Return the time that a setting adds to TPOT, in seconds, paired by repeat: median and its
    interval."""
    pairs = zip(record["tpot_s"][name], record["tpot_s"]["absent"], strict=False)
    added = [a - b for a, b in pairs]
    return statistics.median(added), median_interval(added)


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
    return "  ".join(f"{name} {spread(ratios(record, name, figure))}" for name in SETTINGS)


SETTINGS: Settings = {
    "off": ("probe", {"stop": True}),
    "default": ("probe", {"budget": 0.01}),
    "every round": ("probe", {"every": 1}),
}
"""Setting -> engine and sampler settings; each is compared with "absent"."""
POINTS = {
    "cuda": ((1, 1000), (8, 1000), (64, 1000), (1, 8000), (8, 8000)),
    "cpu": ((1, 64), (4, 200)),
}
"""Device -> (concurrency, context); the cache of one engine is the limit."""
REPEATS, TOKENS = {"cuda": 12, "cpu": 2}, {"cuda": 33, "cpu": 17}
K = 4
CAPTURED = [1, 5, 8, 40, 64, 320]
"""Sizes of the CUDA graphs: K + 1 tokens for each request, and one; more sizes would be captured in
vain."""
CACHE_BYTES = 12_000_000_000
"""An engine's KV cache: 91,000 tokens of the 8B shape, so that two engines fit into 78 GiB."""
PROFILED = ((1, 1000), (64, 1000))
"""Concurrency and context of the timelines."""
PROFILED_TOKENS = 17
TIMELINES_S = 30.0
"""Least time that the timelines get, in seconds."""


OWN: dict[str, dict[str, Any]] = {
    "cpu": {"max_model_len": 1200, "max_num_seqs": 8},
    "cuda": {
        "max_model_len": 12_000,
        "max_num_seqs": 64,
        "kv_cache_memory_bytes": CACHE_BYTES,
        "gpu_memory_utilization": 0.3,
        "compilation_config": {"cudagraph_capture_sizes": CAPTURED},
    },
}
"""Device -> options of both engines."""


def _start(folder: Path, device: str) -> dict[str, EngineChild]:
    # The default cache of a CPU does not fit into the memory of a small machine.
    base = {"VLLM_CPU_KVCACHE_SPACE": "1"} if device == "cpu" else {}
    shared = options(folder, device, K, enable_prefix_caching=True, **OWN[device])
    environments = {
        "absent": {"DRIFTSCOPE_DISABLE": "1"},
        "probe": {"DRIFTSCOPE_TRACE": str(folder / "run"), "DRIFTSCOPE_EVERY": "1"},
    }
    engines = {
        name: EngineChild(name, shared, {**base, **env}, folder / f"{name}.log")
        for name, env in environments.items()
    }
    for engine in engines.values():
        engine.ask()
    return engines


def _prompts(point: tuple[int, int], device: str) -> list[list[int]]:
    concurrency, context = point
    chance = random.Random(concurrency * 1_000_003 + context)
    vocabulary = 1000 if device == "cpu" else 100_000
    return [[chance.randrange(100, vocabulary) for _ in range(context)] for _ in range(concurrency)]


def run(file: ResultsFile, out: Path, deadline: float) -> None:
    """Measure the points that are missing from the file, and write it after each."""
    device, points = file.device, POINTS[file.device]
    records: list[dict[str, Any]] = file.facts.get("records", [])
    facts = {name: file.facts.get(name) for name in ("started_s", "timelines", "recorded")}
    have = {(r["concurrency"], r["context"]) for r in records}
    todo = [point for point in points if point not in have]
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as name:
        began = time.time()
        engines = _start(Path(name), device) if todo else {}
        if engines:
            facts["started_s"] = round(time.time() - began, 1)
            print(f"started in {facts['started_s']} s", flush=True)
        for point in todo:
            # Measure at least one point, so that repeated starts make progress.
            if point != todo[0] and time.time() > deadline:
                break
            prompts, repeats, tokens = _prompts(point, device), REPEATS[device], TOKENS[device]
            records.append(measure(engines, point, repeats, tokens, prompts, SETTINGS, deadline))
            print("\n".join(point_lines(records[-1:])), flush=True)
            facts["recorded"] = _recorded(Path(name) / "run")
            _write(file, records, facts)
        if engines and device == "cuda" and time.time() + TIMELINES_S < deadline:
            facts["timelines"] = _timelines(engines["probe"], out / "timelines")
        for engine in engines.values():
            engine.close()
    print("Ratios to an engine without driftscope: median of paired repeats (least-most)")
    print("\n".join(point_lines(records)))
    print("What is added to TPOT, by context: median (its 95% interval; least to most of under 6)")
    print("\n".join(context_lines(records)) or "one context only")
    _write(file, records, facts)


def _write(file: ResultsFile, records: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    ok, verdict = judge(records)
    if file.device == "cpu":
        # The tiny trio on a CPU only shows that the code runs; the goals are for a GPU.
        ok, verdict = bool(records), f"{len(records)} points ran; goals are not judged on a CPU"
    rows = list(by_context(records))
    file.write(
        complete=len(records) >= len(POINTS[file.device]),
        ok=ok,
        verdict=verdict,
        k=K,
        records=records,
        cost_by_context=rows,
        **facts,
    )


def _timelines(engine: EngineChild, folder: Path) -> list[dict[str, Any]]:
    """Return what a profile of the engine's worker sums up, with the probe stopped and recording
    every round; the timelines are left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for point in PROFILED:
        prompts = _prompts(point, "cuda")
        for name in ("off", "every round"):
            engine.ask(set=SETTINGS[name][1])
            path = folder / f"{name.replace(' ', '-')}-{point[0]}x{point[1]}.json.gz"
            answer = engine.ask(prompts=prompts, tokens=PROFILED_TOKENS, profile=str(path))
            if name != "off":
                answer["kernels"] = kernels(answer["rows"])
            found.append({"setting": name, "concurrency": point[0], "context": point[1], **answer})
    return found


def _recorded(run: Path) -> dict[str, Any]:
    """Return how much the probe recorded, dropped and failed at, by its last word, and the verdict
    of its start-up witness."""
    try:
        trace = read_trace(run)
    except Exception as error:  # the points that were measured count without it
        return {"error": repr(error)}
    return {
        "witness": trace.manifest.witness,
        **{
            name: sum(sum(getattr(status, name).values()) for status in trace.statuses)
            for name in ("rows", "dropped", "errors")
        },
    }


def judge(records: list[dict[str, Any]]) -> tuple[bool, str]:
    """Return whether the goals hold wherever a violation could be detected, and a one-line
    verdict."""
    exceeded, rows = over_goal(records), list(by_context(records))
    growing = [f"{r['setting']} at {r['concurrency']}" for r in rows if r["growth"] == "grows"]
    words = [f"{len(records)} points", f"above the goal: {', '.join(exceeded) or 'none'}"]
    words.append(f"cost grows with context: {', '.join(growing) or 'nowhere'}")
    return not exceeded and not growing, "; ".join(words)


OURS = ("clear_chain", "enter_forward", "measure_state", "leave_forward", "_partial", "_combine")
"""Names of the probe's kernels."""
ONCE = "_partial"
"""Kernel that runs once a recorded round, for a drafter with one layer."""


def kernels(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the launches and the microseconds of each of the probe's kernels per recorded round,
    from a profile's rows."""
    ours = {row["name"]: row for row in rows if row["name"] in OURS}
    rounds = ours[ONCE]["count"] if ONCE in ours else 0
    return {
        "rounds": rounds,
        "us_per_round": {
            name: {
                "launches": row["count"] / rounds,
                "us": round(1e6 * row["device_s"] / rounds, 2),
            }
            for name, row in sorted(ours.items())
            if rounds
        },
    }
