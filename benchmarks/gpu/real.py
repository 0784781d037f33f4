"""Measure whether SmolLM2-135M's drafters pay: tokens per second with and without, side by side.

SMOLLM2 names the target's folder, DRAFTERS its drafters as NAME=FOLDER,NAME=FOLDER. An engine for
each and one without a drafter, all without driftscope, answer the prompts of `smollm2.yaml` in
turn: four kinds of text at one request and at eight at a time, and all kinds at 32. On a CPU the
tiny trio shows that the code runs.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks.engines import Engine
from benchmarks.results_file import REPO, ResultsFile
from driftscope_lab.trio import CONDITIONS, encode, load_prompts, trio_path

PROMPTS = REPO / "driftscope" / "workloads" / "prompts" / "smollm2.yaml"
NONE, ALL = "none", "all"
K = 4
LIMIT, REPEATS = {"cuda": 160, "cpu": 12}, {"cuda": 6, "cpu": 2}
MANY = {"cuda": 32, "cpu": 4}
"""Device -> largest number of requests at a time."""
SOME, KINDS = 8, 4
"""Number of requests at a time of one kind, and of kinds asked by themselves: those with the most
prompts."""
ENV = {
    "DRIFTSCOPE_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


def models(device: str) -> tuple[Path, dict[str, Path | None]]:
    """Return the target's folder and those of the drafters by name, None without one."""
    if device == "cpu":
        return trio_path() / "target", {NONE: None, "eagle31": trio_path() / "eagle31"}
    named = (part.split("=", 1) for part in os.environ["DRAFTERS"].split(","))
    return Path(os.environ["SMOLLM2"]), {NONE: None, **{name: Path(at) for name, at in named}}


def prompts(device: str, target: Path) -> dict[str, list[list[int]]]:
    """Return prompts as token ids by kind of text, and all of them in turn as ALL."""
    kinds: dict[str, list[list[int]]] = defaultdict(list)
    if device == "cpu":
        for at, prompt in enumerate(load_prompts()[:4]):
            kinds[CONDITIONS[at % 2]].append(encode(prompt.text(CONDITIONS[at % 2])))
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(target)
        for entry in yaml.safe_load(PROMPTS.read_text(encoding="utf-8")):
            messages = [
                {"role": role, "content": entry[role]}
                for role in ("system", "user")
                if role in entry
            ]
            ids = tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=True, return_dict=False
            )
            kinds[entry["category"]].append(list(ids))
    mixed = itertools.chain.from_iterable(itertools.zip_longest(*kinds.values()))
    return {**kinds, ALL: [ids for ids in mixed if ids is not None]}


def start(device: str, folder: Path) -> dict[str, Engine]:
    """Start an engine for each drafter, and one without."""
    target, drafters = models(device)
    options: dict[str, Any] = {
        "model": str(target),
        "skip_tokenizer_init": device == "cpu",
        "disable_log_stats": False,
        "enable_prefix_caching": False,
        "max_num_seqs": MANY[device],
    }
    env = dict(ENV)
    if device == "cpu":
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"
        options |= {"max_model_len": 1000, "dtype": "float32", "enforce_eager": True}
    else:
        options |= {
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "gpu_memory_utilization": 0.15,
            "kv_cache_memory_bytes": 4 << 30,
            "attention_backend": "FLASH_ATTN",
            # Up to the verification of all requests at once; the sizes below are vLLM's own.
            "compilation_config": {"max_cudagraph_capture_size": (1 + K) * MANY[device]},
        }
    engines = {}
    for name, drafter in drafters.items():
        own = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": K}
        more = {} if drafter is None else {"speculative_config": own}
        engines[name] = Engine(name, {**options, **more}, env, folder / f"{name}.log")
    for engine in engines.values():
        engine.ask()
    return engines


def ratios(point: dict[str, Any], name: str) -> list[float]:
    """Return each repeat's tokens per second with a drafter, divided by those without."""
    with_it, without = (point["engines"][who]["tokens_per_s"] for who in (name, NONE))
    return [mine / base for mine, base in zip(with_it, without, strict=True)]


def line(point: dict[str, Any]) -> str:
    """Return what a point says in one line: tokens per second as ratios to those without."""
    base = point["engines"][NONE]["tokens_per_s"]
    words = [f"{point['concurrency']} x {point['kind']}"]
    words.append(f"none {statistics.median(base):.0f} tokens/s" if base else "not measured")
    for name, found in point["engines"].items():
        if name != NONE and base:
            chains, *by_depth = found["accepted"]
            rates = "/".join(f"{count / chains:.2f}" for count in by_depth)
            words.append(
                f"{name} {_spread(ratios(point, name))}, accepted {rates}, "
                f"{found['equal']} of {found['answers']} answers equal"
            )
    return "; ".join(words)


def pays(points: list[dict[str, Any]]) -> str:
    """Return the ratios by concurrency, over all kinds of text, in one line."""
    words = []
    for concurrency, some in itertools.groupby(points, key=lambda point: point["concurrency"]):
        same = list(some)
        for name in same[0]["engines"]:
            every = [ratio for point in same for ratio in ratios(point, name)]
            if name != NONE and every:
                words.append(f"{name} at {concurrency}: {_spread(every)}")
    return "; ".join(words)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def run(file: ResultsFile, _out: Path, deadline: float) -> None:
    """Ask all engines each point in turn, and write the file after each round."""
    device = file.device
    with tempfile.TemporaryDirectory(prefix="driftscope-real-") as name:
        began = time.time()
        engines = start(device, Path(name))
        started_s = round(time.time() - began, 1)
        print(f"started in {started_s} s", flush=True)
        asked = prompts(device, models(device)[0])
        kinds = sorted(asked.keys() - {ALL}, key=lambda kind: -len(asked[kind]))[:KINDS]
        at_once = [(1, kind) for kind in kinds] + [(SOME, kind) for kind in kinds]
        points = [_point(*one, engines) for one in [*at_once, (MANY[device], ALL)]]
        for engine in engines.values():
            engine.ask(prompts=asked[ALL], limit=8)
            engine.ask(prompts=asked[ALL][:1], limit=8)
        for repeat in range(REPEATS[device]):
            order = list(engines)[repeat % len(engines) :] + list(engines)[: repeat % len(engines)]
            for point in points:
                if repeat and time.time() > deadline:
                    break
                first = repeat * point["concurrency"]
                turn = itertools.cycle(asked[point["kind"]])
                some = list(itertools.islice(turn, first, first + point["concurrency"]))
                answers = {
                    who: engines[who].ask(prompts=some, limit=LIMIT[device]) for who in order
                }
                _add(point, answers)
            _write(file, points, started_s)
        for engine in engines.values():
            engine.close()


def _point(concurrency: int, kind: str, engines: dict[str, Engine]) -> dict[str, Any]:
    empty = {
        name: {"tokens_per_s": [], "accepted": [], "equal": 0, "answers": 0} for name in engines
    }
    return {"concurrency": concurrency, "kind": kind, "engines": empty}


def _add(point: dict[str, Any], answers: dict[str, dict[str, Any]]) -> None:
    """Add one repeat: speed, acceptance, and how many answers have the tokens of those without."""
    for name, answer in answers.items():
        found, ids = point["engines"][name], answer["ids"]
        found["tokens_per_s"].append(sum(map(len, ids)) / answer["seconds"])
        old = found["accepted"] or [0] * len(answer["accepted"])
        found["accepted"] = [a + b for a, b in zip(old, answer["accepted"], strict=True)]
        found["answers"] += len(ids)
        found["equal"] += sum(a == b for a, b in zip(ids, answers[NONE]["ids"], strict=True))


def _write(file: ResultsFile, points: list[dict[str, Any]], started_s: float) -> None:
    lines = [line(point) for point in points]
    print("\n".join(lines), flush=True)
    repeats = min(len(point["engines"][NONE]["tokens_per_s"]) for point in points)
    file.write(
        complete=repeats >= REPEATS[file.device],
        verdict=pays(points),
        k=K,
        limit=LIMIT[file.device],
        started_s=started_s,
        points=points,
    )
