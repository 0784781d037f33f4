"""What the probe costs on a GPU: TPOT by concurrency and context, with and without it, interleaved.

python3 benchmarks/cuda/overhead.py [--json FILE] [--seconds N] [--repeats N] [--k N] [--smoke]

Three engines of Llama-3.1-8B's shape (dummy weights) share one GPU and are asked in turn: one
without driftscope, one with it, whose sampling is changed between requests, and one without
driftscope that is kept from using CUDA graphs, which is what tools that hook modules do. Each ratio
is of neighbours in time. `--smoke` runs the same with the tiny trio, anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS = {
    "off": ("probe", {"stop": True}),
    "default": ("probe", {"budget": 0.01}),
    "every round": ("probe", {"every": 1}),
    "eager": ("eager", None),
}
"""Setting -> engine and what its sampler is set to; each is held against "absent"."""
POINTS = ((1, 1000), (16, 1000), (1, 8000), (64, 1000), (4, 8000), (1, 32_000), (16, 8000),
          (4, 32_000), (1, 100_000), (4, 1000))  # fmt: skip
"""(concurrency, context); what one engine's cache holds is the limit."""
SMOKE_POINTS = ((1, 64), (4, 200))
CACHE_BYTES = 24_000_000_000


class Engine:
    """A child process with one vLLM."""

    def __init__(self, name: str, options: dict[str, Any], env: dict[str, str], log: Path) -> None:
        self.name, self._log = name, log
        child = Path(__file__).with_name("overhead_child.py")
        self._process = subprocess.Popen(
            [sys.executable, str(child), json.dumps(options)],
            env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log.open("wb"), text=True,
        )  # fmt: skip

    def ask(self, **question: Any) -> dict[str, Any]:
        """One line there, one line back; an empty question only waits for the start."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if question:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"engine {self.name} ended:\n{self._log.read_text(errors='replace')[-6000:]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.terminate()


def _options(folder: Path, k: int, smoke: bool) -> dict[str, Any]:
    if smoke:
        from driftscope_probes.trio import trio_path

        target, drafter = trio_path() / "target", trio_path() / "eagle31"
        own: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8}
    else:
        import shape  # beside this script

        target, drafter = shape.write(folder)
        own = {
            "load_format": "dummy", "max_model_len": 104_000, "max_num_seqs": 64,
            "kv_cache_memory_bytes": CACHE_BYTES, "gpu_memory_utilization": 0.3,
            "attention_backend": "FLASH_ATTN",
        }  # fmt: skip
    return {
        "model": str(target), "skip_tokenizer_init": True, "enable_prefix_caching": True, **own,
        "speculative_config": {
            "method": "eagle3", "model": str(drafter), "num_speculative_tokens": k
        },
    }  # fmt: skip


def _start(folder: Path, k: int, smoke: bool) -> dict[str, Engine]:
    options = _options(folder, k, smoke)
    base = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}  # fmt: skip
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


def _prompts(concurrency: int, context: int, smoke: bool) -> list[list[int]]:
    chance = random.Random(concurrency * 1_000_003 + context)
    size = 1000 if smoke else 100_000
    return [[chance.randrange(100, size) for _ in range(context)] for _ in range(concurrency)]


def measure(
    engines: dict[str, Engine], point: tuple[int, int], repeats: int, tokens: int,
    prompts: list[list[int]], settings: Mapping[str, tuple[str, dict[str, Any] | None]],
    deadline: float,
) -> dict[str, Any]:  # fmt: skip
    """TPOT in seconds by setting, one figure per repeat, and what the sampler says at the end."""
    found: dict[str, list[float]] = {name: [] for name in ("absent", *settings)}
    for engine in engines.values():
        engine.ask(prompts=prompts, tokens=8)  # prefills the cache
    for repeat in range(repeats):
        order = list(found)
        turn = repeat % len(order)
        for name in order[turn:] + order[:turn]:
            engine, setting = settings.get(name, ("absent", None))
            if setting is not None:
                engines[engine].ask(set=setting)
            found[name].append(engines[engine].ask(prompts=prompts, tokens=tokens)["tpot_s"])
        if time.time() > deadline:
            break
    state = engines["probe"].ask(set={"budget": 0.01})
    return {"concurrency": point[0], "context": point[1], "tpot_s": found, "sampler": state}


def ratios(record: dict[str, Any], name: str) -> list[float]:
    """Each repeat's TPOT as a ratio to that without driftscope in the same repeat."""
    pairs = zip(record["tpot_s"][name], record["tpot_s"]["absent"], strict=False)
    return [a / b for a, b in pairs]


def print_table(records: list[dict[str, Any]]) -> None:
    print("TPOT as a ratio to that without driftscope: median of paired repeats (least-most)")
    for record in records:
        absent = statistics.median(record["tpot_s"]["absent"])
        cells = [
            f"{name} {statistics.median(r):.3f} ({min(r):.3f}-{max(r):.3f})"
            for name in SETTINGS
            if (r := ratios(record, name))
        ]
        print(f"x{record['concurrency']:<3} context {record['context']:7} "
              f"{absent * 1000:7.3f} ms  {'  '.join(cells)}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    deadline = time.time() + options.seconds
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as name:
        engines = _start(Path(name), options.k, options.smoke)
        print(f"engines ready, {deadline - time.time():.0f} s left", flush=True)
        for point in SMOKE_POINTS if options.smoke else POINTS:
            if time.time() > deadline:
                print(f"out of time before {point}")
                break
            records.append(
                measure(
                    engines,
                    point,
                    options.repeats,
                    options.tokens,
                    _prompts(*point, options.smoke),
                    SETTINGS,
                    deadline,
                )
            )
            print_table(records[-1:])
            if options.json:
                facts = {"k": options.k, "machine": platform.machine(), "records": records}
                options.json.write_text(json.dumps(facts, indent=1) + "\n")
        for engine in engines.values():
            engine.close()


if __name__ == "__main__":
    main()
