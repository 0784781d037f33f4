"""What recording costs: TPOT without the plugin, installed but off, by its budget, every round.

python benchmarks/overhead.py [--starts N] [--seconds N] [--points CONTEXTxBATCH ...] [--json FILE]
(`make bench`)

The tiny trio on one CPU core. One engine that loads no plugin; one with the plugin installed and
not turned on, which is also how far two engines of the same code lie apart; one that records, whose
sampling is changed between requests; and one that vLLM compiles, as the price of the peers' way:
tools that hook modules force eager execution. All are asked in turn, so that each ratio is of
neighbours in time; the order rotates. Single repeats differ by a tenth on a shared machine, so each
point gets as many as fit into its seconds. Two processes of the same code keep differing by a
percent or two, however often they are asked: so engines are started several times, and the spread
is that of the starts' medians. What the probe says of itself stands beside it: its share of a step
that is recorded, the core beside included, and of one that is not. The tiny trio's round takes a
few milliseconds, so these ratios are a worst case for Python's share: they say nothing of a GPU
(benchmarks/cuda/overhead.py does).
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

from benchmarks.engines import FIGURES, Engine, measure, ratios
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
CALLS = 3
"""Of one request; a batch is an average by itself."""
REST_S = 1.2
"""For 1 s after its last message a worker of vLLM polls for the next, and all engines compute on
the same core: without a rest each is measured against the one before it."""
STARTS = 4
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
        found, at, medians = ratios(record, name), 0, []
        for repeats in record["repeats"]:
            medians.append(statistics.median(found[at : at + repeats]))
            at += repeats
        cells.append(
            f"{name} {statistics.median(found):.3f} ({min(medians):.3f}-{max(medians):.3f})"
        )
    recorded, passed = (
        statistics.median(state[cost] / state["step_s"] for state in record["sampler"])
        for cost in ("recorded_s", "passed_s")
    )
    print(f"context {record['context']:5}  batch {record['concurrency']:2}  repeats "
          f"{len(absent):3}  {statistics.median(absent) * 1000:6.2f} ms  {'  '.join(cells)}  "
          f"by its own account {recorded:.2%}, {passed:.2%}", flush=True)  # fmt: skip


def _point(text: str) -> tuple[int, int]:
    context, batch = text.split("x")
    return int(context), int(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help="of the engines")
    parser.add_argument("--seconds", type=float, default=25, help="for each point and start")
    parser.add_argument("--points", nargs="+", type=_point, help="such as 64x1; default: all",
                        default=[(c, b) for c in CONTEXTS for b in BATCHES])  # fmt: skip
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("TPOT as a ratio to an engine that loads no plugin: median of paired repeats, and the "
          "least and the most of the medians of each start of the engines")  # fmt: skip
    records: dict[tuple[int, int], dict[str, Any]] = {}
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as folder:
            engines = _start(Path(folder))
            for point in options.points:
                found = _measure(engines, point, options.seconds)
                records[point] = _joined(records[point], found) if point in records else found
                if options.json:  # what is measured is kept, whatever comes after
                    _write(options.json, options.seconds, list(records.values()))
            for engine in engines.values():
                engine.close()
    for record in records.values():
        print_record(record)
    for line in lines():
        print(line)


def _measure(engines: dict[str, Engine], point: tuple[int, int], seconds: float) -> dict[str, Any]:
    context, batch = point
    many = batch == max(BATCHES)
    found = measure(
        engines, (batch, context), MOST_REPEATS, TOKENS_OF_MANY if many else TOKENS,
        _prompts(context, batch), SETTINGS, time.time() + seconds,
        calls=CALLS if batch == 1 else 1, rest_s=REST_S,
    )  # fmt: skip
    return {
        **found, "repeats": [len(found["tpot_s"]["absent"])], "sampler": [found["sampler"]]
    }  # fmt: skip


def _joined(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The same point, of several starts."""
    figures = {
        figure: {name: values + found[figure][name] for name, values in before[figure].items()}
        for figure in FIGURES
    }
    lists = {name: before[name] + found[name] for name in ("repeats", "sampler")}
    return {**before, **figures, **lists}


def _write(path: Path, seconds: float, records: list[dict[str, Any]]) -> None:
    facts = {
        "command": "make bench",
        "cores": os.cpu_count(),
        "vllm": importlib.metadata.version("vllm-cpu"),
        "seconds_per_point_and_start": seconds,
        "records": records,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
