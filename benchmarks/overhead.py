"""What recording costs: TPOT without the plugin, installed but off, by its budget, every round.

python benchmarks/overhead.py [--starts N] [--within N] [--between N] [--points CONTEXTxBATCH ...]
    [--json FILE]                                                                   (`make bench`)

The tiny trio on one CPU core, asked in two ways.

Within one engine, which is alone on the machine and records one step in four: how much longer the
time from step to step is for the recorded one and the one after it, which may still pay for it,
than for the two that follow. They do the same work within a second, so that neither what else the
machine does nor the process matters much. What every step costs, recorded or not, is not in it: the
hooks, and what the writer's thread takes; it is in what the probe says of itself.

Between engines, which take turns: one that loads no plugin; one with the plugin installed and not
turned on, which is also how far two engines of the same code lie apart; one that records, by its
budget and every round; and one that vLLM compiles, as the price of the peers' way: tools that hook
modules force eager execution. Two processes of the same code differ by some percent, however often
they are asked, so all are started several times.

Each ratio is of neighbours in time; the order rotates; each point gets as many repeats as fit into
its seconds. What the probe says of itself stands beside it: its share of a step that is recorded,
the core beside and the writer's thread included, and of one that is not. The tiny trio's step takes
tens of milliseconds, so these ratios are a worst case for Python's share: they say nothing of a GPU
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.engines import FIGURES, Engine, Settings, measure, median_interval, ratios
from benchmarks.peers import lines
from driftscope.trace.reader import read_trace
from driftscope.trace.writer import FLUSH_S
from driftscope_probes.trio import encode, load_prompts, trio_path

K = 8
CONTEXTS = (64, 1537)
"""The longer is twelve of vLLM's blocks and a token: a request finds all but that one in the prefix
cache."""
BATCHES = (1, 8, 32)
TOKENS = 65
TOKENS_OF_MANY = 17
"""Where every request of the largest batch is waited for."""
TOKENS_WITHIN = 129
MOST_REPEATS = 999
CALLS = 3
"""Of one request, of which the median counts; a batch is an average by itself."""
REST_S = 1.2
"""For 1 s after its last message a worker of vLLM polls for the next, and all engines compute on
the same core: without a rest each is measured against the one before it."""
STARTS = 2
DRAFTER = "eagle31"
ONE_IN = 4
FULL = 0.75
"""Of a batch whose requests end one after the other."""
SETTINGS: Settings = {
    "off": ("off", None),
    "budget 1%": ("probe", {"budget": 0.01}),
    "every round": ("probe", {"every": 1}),
    "compiled": ("compiled", None),
}
"""Setting -> engine and what its sampler is set to."""
Record = dict[str, Any]
Point = tuple[int, int]


def _start(folder: Path, *names: str) -> dict[str, Engine]:
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
    environments = {"absent": none, "off": off, "probe": on, "compiled": none}
    engines = {
        name: Engine(
            name, {**options, "enforce_eager": name != "compiled"}, {**base, **environments[name]},
            folder / name,
        )
        for name in names
    }  # fmt: skip
    for engine in engines.values():
        engine.ask()
    return engines


def _prompts(context: int, batch: int) -> list[list[int]]:
    """Held-out text joined and cut to `context` tokens, another start for each request."""
    ids = encode("".join(prompt.in_distribution for prompt in load_prompts())) * 2
    return [ids[start * 97 : start * 97 + context] for start in range(batch)]


def print_within(record: Record) -> None:
    """A line."""
    added, step_s = record["added"], statistics.median(record["step_s"])
    low, high = median_interval(added)
    print(f"context {record['context']:5}  batch {record['concurrency']:2}  recorded steps "
          f"{len(added):4}  {step_s * 1000:6.2f} ms a step  every round "
          f"{1 + statistics.median(added):.3f} ({1 + low:.3f}-{1 + high:.3f})")  # fmt: skip


def print_between(record: Record) -> None:
    """A line."""
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
    tpot = record["tpot_s"]["absent"]
    print(f"context {record['context']:5}  batch {record['concurrency']:2}  repeats "
          f"{len(tpot):3}  {statistics.median(tpot) * 1000:6.2f} ms  {'  '.join(cells)}  "
          f"by its own account {recorded:.2%}, {passed:.2%}")  # fmt: skip


def _point(text: str) -> Point:
    context, batch = text.split("x")
    return int(context), int(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=STARTS, help="of the engines")
    parser.add_argument("--within", type=float, default=40, help="seconds a point and start")
    parser.add_argument("--between", type=float, default=15, help="seconds a point and start")
    parser.add_argument("--points", nargs="+", type=_point, help="such as 64x1; default: all",
                        default=[(c, b) for c in CONTEXTS for b in BATCHES])  # fmt: skip
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    within: dict[Point, Record] = {}
    between: dict[Point, Record] = {}
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as folder:
            engines = _start(Path(folder), "probe")
            for found in _within(engines["probe"], Path(folder), options.points, options.within):
                _add(within, found, "step_s", "added")
            _write(options, within, between)
            engines |= _start(Path(folder), "absent", "off", "compiled")
            for point in options.points:
                _add(between, _between(engines, point, options.between), "repeats", "sampler")
                _write(options, within, between)
            for engine in engines.values():
                engine.close()
    print("within one engine: time per step as a ratio to steps that are not recorded, median and "
          "its 95 % interval")  # fmt: skip
    for record in within.values():
        print_within(record)
    print("between engines: TPOT as a ratio to one that loads no plugin, median of paired "
          "repeats, the least and the most of the medians of each start")  # fmt: skip
    for record in between.values():
        print_between(record)
    for line in lines():
        print(line)


def _within(engine: Engine, folder: Path, points: list[Point], seconds: float) -> Iterator[Record]:
    """Per point: `step_s`, of steps that are not recorded, and `added`, what recording adds to one
    as a share of it; a number for each recorded step."""
    engine.ask(set={"every": ONE_IN})
    windows: dict[Point, tuple[float, float]] = {}
    for context, batch in points:
        prompts = _prompts(context, batch)
        engine.ask(prompts=prompts, tokens=8, calls=1)  # prefills the cache
        begun = time.time()
        while time.time() < begun + seconds:
            engine.ask(prompts=prompts, tokens=TOKENS_WITHIN, calls=1)
        windows[context, batch] = begun, time.time()
    time.sleep(2 * FLUSH_S)
    steps = read_trace(folder / "run").step.to_pandas().sort_values("step")
    for (context, batch), window in windows.items():
        found = added_by_recording(steps[steps.time_s.between(*window)], batch)
        yield {"context": context, "concurrency": batch, **found}


def added_by_recording(steps: pd.DataFrame, batch: int) -> dict[str, list[float]]:
    """Of each recorded step among a run's steps: `step_s` of those that follow, and `added`."""
    took, recorded = steps.time_s.diff().to_numpy(), steps.recorded.to_numpy()
    # Between two steps of the same requests lies nothing but the engine's own step.
    same = ((steps.chains.diff() == 0) & (steps.step.diff() == 1)).to_numpy()
    fine = same & (steps.chains >= FULL * batch).to_numpy()
    found: dict[str, list[float]] = {"step_s": [], "added": []}
    for at in range(len(steps) - ONE_IN + 1):
        if recorded[at] and fine[at : at + ONE_IN].all():
            usual = float(took[at + 2 : at + ONE_IN].mean())
            found["step_s"].append(round(usual, 6))
            found["added"].append(round(float(took[at] + took[at + 1] - 2 * usual) / usual, 4))
    return found


def _between(engines: dict[str, Engine], point: Point, seconds: float) -> Record:
    context, batch = point
    found = measure(
        engines, (batch, context), MOST_REPEATS,
        TOKENS_OF_MANY if batch == max(BATCHES) else TOKENS, _prompts(context, batch), SETTINGS,
        time.time() + seconds, calls=CALLS if batch == 1 else 1, rest_s=REST_S,
    )  # fmt: skip
    return {
        **found, "repeats": [len(found["tpot_s"]["absent"])], "sampler": [found["sampler"]]
    }  # fmt: skip


def _add(records: dict[Point, Record], found: Record, *lists: str) -> None:
    """To what earlier starts have found at this point."""
    point = found["context"], found["concurrency"]
    before = records.setdefault(point, found)
    if before is found:
        return
    for name in lists:
        before[name] += found[name]
    for figure in set(FIGURES) & set(before):
        for setting, values in found[figure].items():
            before[figure][setting] += values


def _write(
    options: argparse.Namespace, within: dict[Point, Record], between: dict[Point, Record]
) -> None:
    """What is measured is kept, whatever comes after."""
    if not options.json:
        return
    facts = {
        "command": "make bench",
        "cores": os.cpu_count(),
        "vllm": importlib.metadata.version("vllm-cpu"),
        "starts": options.starts,
        "seconds_per_point_and_start": {"within": options.within, "between": options.between},
        "within": list(within.values()),
        "between": list(between.values()),
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
