"""Measure the cost of recording: time per step without hooks, stopped, by budget, every round.

python benchmarks/overhead.py [--within N] [--others N] [--points CONTEXTxBATCH ...] [--json FILE]
    [--real] [--show FILE]                                                          (`make bench`)

Uses the tiny trio on one CPU core, in one engine that is alone on the machine; with --real a
language model, SmolLM2-135M with its EAGLE-3.1, whose steps are longer.

The probe changes its state every few steps: none of driftscope's hooks on vLLM, then all of them
with the probe stopped, with its default budget, with every round recorded, and no hooks again
(`benchmarks.turns`). Every ratio is therefore of steps that the same process took within a second
or two, and other load on the machine affects all states equally. The last state shows the ratio
when there is no difference at all. A turn's figure is the median of its six steps, a ratio the mean
of the rounds without the fifth at each end. The writer's flushes fall on all states, so their cost
is measured separately, with the probe in one state for a while (`benchmarks.turns`). A budget
records so few steps that a median does not show them: their share of all steps is counted, and the
time that they take above the median of their turn. The cost of a state is the sum of these. Batch
1, where the probe's share is largest, is measured far longer than the others.

The table also shows what the probe itself reports: its share of a step that is recorded, and of one
that is not. The tiny trio's step takes tens of milliseconds, so these ratios are a worst case for
Python's share. They say nothing about a GPU (benchmarks/gpu does).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import turns
from benchmarks.engines import EngineChild, options
from benchmarks.results_file import ResultsFile
from benchmarks.turns import ABSENT, BUDGET, EVERY, SETTINGS, STATES, share
from driftscope_lab.smollm2 import drafters_folder
from driftscope_lab.smollm2.fetch import fetched
from driftscope_lab.trio import encode, load_prompts

K = 8
CONTEXTS = (64, 1537)
"""Context lengths in tokens. The longer is twelve of vLLM's blocks and a token: a request finds all
but that one in the prefix cache."""
BATCHES = (1, 8, 32)
TOKENS = {1: 513, 8: 257, 32: 257}
"""Output tokens of a request by batch size."""
FIXED_S = 25.0
"""Time for which each state is kept to measure the writer's flushes, in seconds."""
Record = dict[str, Any]
Point = tuple[int, int]


def _start(folder: Path, *, real: bool) -> EngineChild:
    own = {"max_model_len": 2048, "max_num_seqs": max(BATCHES), "enable_prefix_caching": True}
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",  # vLLM's binding alone keeps one thread per core
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "DRIFTSCOPE_TRACE": str(folder / "run"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    asked = options(folder, "cpu", K, **own)
    if real:
        asked.update(model=str(fetched()), dtype="bfloat16")
        asked["speculative_config"]["model"] = str(drafters_folder() / "eagle31")
    engine = EngineChild("probe", asked, environment, folder / "log.txt")
    engine.ask()
    return engine


def _prompts(context: int, batch: int) -> list[list[int]]:
    """Return held-out texts, joined and cut to `context` tokens, with a different start per
    request."""
    ids = encode("".join(prompt.in_distribution for prompt in load_prompts())) * 2
    return [ids[start * 97 : start * 97 + context] for start in range(batch)]


def print_within(record: Record) -> None:
    """Print a line for the point, then one for each state."""
    rounds, account = record["rounds"], record["account"]
    step_s = statistics.median(times[ABSENT][0] for times in rounds)
    shares = [account[name] / account["step_s"] for name in ("recorded_s", "passed_s")]
    own = " and ".join(f"{share:.2%}" for share in shares)
    print(
        f"context {record['context']:5}  batch {record['concurrency']:2}  rounds {len(rounds):4}"
        f"  {step_s * 1000:6.2f} ms a step  by its own account {own} of a recorded and a passed "
        f"step, rate {account['rate']:.3f}",
        flush=True,
    )
    for state in STATES[1:]:
        fixed = record["fixed"].get(state)
        drawn = turns.Drawn(**record["drawn"][state])
        print(f"  {state:12}  {_result_line(rounds, state, fixed, drawn)}", flush=True)


def _result_line(
    rounds: list[turns.Round], state: str, fixed: Record | None, drawn: turns.Drawn
) -> str:
    found = turns.ratios(rounds, state)
    hooks, (low, high) = turns.trimmed_mean(found), turns.interval(found)
    line = f"hooks {hooks:.4f} ({low:.4f}-{high:.4f})"
    if fixed is None:
        return line
    lost, off = share(fixed["flushes"])
    whole = hooks + lost
    if state == BUDGET and drawn.steps:
        rare = drawn.adds(statistics.fmean(times[state][0] for times in rounds))
        whole += rare
        line += f"  {drawn.recorded / drawn.steps:.2%} recorded {rare:.2%}"
    least, most = whole - math.hypot(hooks - low, off), whole + math.hypot(high - hooks, off)
    return (
        f"{line}  flushes {lost:.2%} +- {off:.2%}  together {whole:.4f} ({least:.4f}-{most:.4f})"
        f"  its threads {fixed['threads']:.2%} of a core"
    )


def _point(text: str) -> Point:
    context, batch = text.split("x")
    return int(context), int(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=float, default=450, help="seconds a point of batch 1")
    parser.add_argument("--others", type=float, default=45, help="seconds of each other point")
    parser.add_argument(
        "--points",
        nargs="+",
        type=_point,
        help="such as 64x1; default: all",
        default=[(c, b) for c in CONTEXTS for b in BATCHES],
    )
    parser.add_argument(
        "--real", action="store_true", help="SmolLM2-135M and its EAGLE-3.1, fetched once"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path, help="print what an earlier run has found")
    wanted = parser.parse_args()
    if wanted.show:
        _print(json.loads(wanted.show.read_text())["within"])
        return
    within: list[Record] = []
    seconds = {"within": wanted.within, "others": wanted.others, "fixed": FIXED_S}
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as folder:
        engine = _start(Path(folder), real=wanted.real)
        file = ResultsFile(wanted.json, "cpu", again=True)
        for point in wanted.points:
            within.append(_within(engine, point, seconds["within" if point[1] == 1 else "others"]))
            whole = len(within) == len(wanted.points)
            file.write(complete=whole, seconds_per_point=seconds, within=within, indent=None)
        engine.close()
    _print(within)


def _print(within: list[Record]) -> None:
    print(
        "time per step as a ratio to steps without a hook of driftscope's, trimmed mean of the "
        "rounds and its 95 % interval; of a budget, how many steps were recorded and what those "
        "add; what the writer's flushes take of the steps in that state; all together"
    )
    for record in within:
        print_within(record)


def _within(engine: EngineChild, point: Point, seconds: float) -> Record:
    context, batch = point
    asked = {"prompts": _prompts(context, batch), "tokens": TOKENS[batch]}
    engine.ask(**asked, state=EVERY, seconds=2.0)  # fills the prefix cache
    found = engine.ask(**asked, seconds=seconds)
    fixed = {state: engine.ask(**asked, state=state, seconds=FIXED_S) for state in SETTINGS}
    return {"context": context, "concurrency": batch, **found, "fixed": fixed}


if __name__ == "__main__":
    main()
