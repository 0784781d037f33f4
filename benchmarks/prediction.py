"""Compare the advice on K with real engines: guessed, bounded and measured TPOT at each K.

python benchmarks/prediction.py [--repeats N] [--json FILE] [--folder DIR]    (`make prediction`)

Uses the tiny trio on one CPU core, vLLM's V1 runner, eager, one engine after the other: K = 1 to 8
with the probe on (it records steps and verification, and no chain), and K = 0 without speculation
and without driftscope. Each engine receives the same texts at batch 1 and at batch 8, which stays 8
while it is timed. The model sees the run at K = 8 alone, then those at K = 8 and 2; everything else
is predicted. Engines run minutes apart, so other load on the machine is part of the error.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LARGEST, SECOND = 8, 2
"""K of the run that all predictions use, and of the second one that some use."""
BATCHES = (1, 8)
PROMPTS = 8
CONTEXT = 64
TOKENS = 96
"""Output tokens per request that are timed."""
DRAFTER = "eagle31"
ESTIMATES = ("cut_anew", "cut_off")
"""Estimates of the acceptance length at a smaller K; see `lengths`."""


def serve(k: int, repeats: int, answer: Path) -> None:
    """Measure in a separate process: seconds per output token by batch size, one figure per
    repeat."""
    from vllm import LLM, SamplingParams

    from driftscope_lab.trio import encode, load_prompts, trio_path

    speculation = (
        {
            "speculative_config": {
                "method": "eagle3",
                "model": str(trio_path() / DRAFTER),
                "num_speculative_tokens": k,
            }
        }
        if k
        else {}
    )
    llm = LLM(
        model=str(trio_path() / "target"),
        dtype="float32",
        max_model_len=512,
        enforce_eager=True,
        max_num_seqs=max(BATCHES),
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        **speculation,
    )
    engine = llm.llm_engine
    texts = [encode(prompt.in_distribution)[:CONTEXT] for prompt in load_prompts()[:PROMPTS]]
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, detokenize=False)
    count = 0

    def timed(prompts: list[list[int]]) -> tuple[float, int]:
        """Return seconds and tokens from the step in which all requests have a token until they
        have TOKENS."""
        nonlocal count
        names = [f"{count + n}" for n in range(len(prompts))]
        count += len(prompts)
        for name, ids in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": ids}, params)
        lengths: dict[str, int] = {}
        while len(lengths) < len(prompts):
            lengths |= {o.request_id: len(o.outputs[0].token_ids) for o in engine.step()}
        before, start = sum(lengths.values()), time.perf_counter()
        while sum(lengths.values()) - before < TOKENS * len(prompts):
            lengths |= {o.request_id: len(o.outputs[0].token_ids) for o in engine.step()}
        spent = time.perf_counter() - start
        engine.abort_request(names)
        engine.step()
        return spent, sum(lengths.values()) - before

    def tpot_s(batch: int) -> float:
        parts = [timed(texts[at : at + batch]) for at in range(0, PROMPTS, batch)]
        return batch * sum(spent for spent, _ in parts) / sum(tokens for _, tokens in parts)

    for batch in BATCHES:
        tpot_s(batch)  # warm-up
    found = {str(batch): [] for batch in BATCHES}
    for _ in range(repeats):
        for batch in BATCHES:
            found[str(batch)].append(tpot_s(batch))
    time.sleep(1)  # the probe's writer flushes several times a second
    answer.write_text(json.dumps(found))


def run_engine(folder: Path, k: int, repeats: int) -> dict[str, list[float]]:
    """Return the TPOT by batch size at a K; the run of a K of 1 or more is in `folder`/K. An
    existing result is not measured again."""
    found: dict[str, list[float]]
    answer, log = folder / f"{k}.json", folder / f"{k}.log"
    if answer.exists():
        found = json.loads(answer.read_text())
        return found
    probe = (
        {"DRIFTSCOPE_TRACE": str(folder / str(k)), "DRIFTSCOPE_EVERY": "1000000"}
        if k
        else {"DRIFTSCOPE_DISABLE": "1"}
    )
    env = {
        **os.environ,
        **probe,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    command = [sys.executable, __file__, "--serve", str(k), str(repeats), str(answer)]
    with log.open("wb") as sink:
        subprocess.run(command, env=env, stdout=sink, stderr=sink, check=False, timeout=600)
    if not answer.exists():
        raise SystemExit(f"engine with K = {k} failed:\n{log.read_text(errors='replace')[-6000:]}")
    found = json.loads(answer.read_text())
    return found


def predictions(folder: Path, others: Sequence[int]) -> dict[str, Any]:
    """Return the model's estimates by batch size from the run at K = LARGEST and `others`."""
    from driftscope.analysis.cost.advice import advise
    from driftscope.analysis.query.record_views import open_run
    from driftscope.pipeline import summarise

    run, *rest = (summarise(open_run(folder / str(k)), f"K = {k}") for k in (LARGEST, *others))
    advice = advise(run, rest)
    if advice is None:
        raise SystemExit("too few steps for a model")
    by_batch = {at.batch: at for at in advice.by_batch}
    return {
        "assumed": list(advice.assumed),
        "tpot_s": {
            str(batch): [
                {
                    "value": e.value,
                    "low": e.interval.low if e.interval else None,
                    "high": e.interval.high if e.interval else None,
                }
                for e in by_batch[batch].tpot_s
            ]
            for batch in BATCHES
        },
    }


def lengths(folder: Path) -> list[dict[str, float]]:
    """Return the acceptance length that each K was served with, and two estimates of it from the
    run at K = LARGEST: its rounds cut anew, and its chains cut off."""
    from driftscope.analysis.figures.run_sums import collect
    from driftscope.analysis.query.record_views import open_run
    from driftscope.analysis.summary.length_by_k import lengths_by_k
    from driftscope.metrics.acceptance import mean_length_of
    from driftscope.pipeline import summarise

    largest = collect(open_run(folder / str(LARGEST)))
    rates = summarise(largest, "run").acceptance.marginal
    return [
        {
            "k": at.k,
            "served": summarise(folder / str(at.k), "run").acceptance.mean_length,
            "cut_anew": at.mean_length,
            "cut_off": float(mean_length_of(rates[: at.k])),
        }
        for at in lengths_by_k(largest).value
    ]


def print_lengths(rows: Sequence[dict[str, float]]) -> None:
    print(f"acceptance length: served, from K = {LARGEST} cut anew (error), cut off (error)")
    for row in rows:
        errors = [f"{row[name]:.3f} ({row[name] / row['served'] - 1:+.1%})" for name in ESTIMATES]
        print(f"K = {row['k']}   {row['served']:.3f}   {'   '.join(errors)}")


def print_table(measured: dict[int, dict[str, list[float]]], models: dict[str, Any]) -> None:
    """Print one line per batch size and K, then the errors and the cost of following the advice."""
    print("TPOT in ms: measured (least-most of repeats), guessed [bounds] error")
    for batch in map(str, BATCHES):
        for k, found in measured.items():
            real = statistics.median(found[batch])
            ends = f"{1000 * min(found[batch]):.2f}-{1000 * max(found[batch]):.2f}"
            cells = [f"batch {batch}  K = {k}  {1000 * real:6.2f} ({ends})"]
            for name, model in models.items():
                e = model["tpot_s"][batch][k]
                ends = "open" if e["low"] is None else _ends(e)
                cells.append(
                    f"from {name}: {1000 * e['value']:6.2f} [{ends}] {e['value'] / real - 1:+.0%}"
                )
            print("   ".join(cells))
    for name, model in models.items():
        for line in summary_of(measured, name, model):
            print(line)


def _ends(estimate: dict[str, float]) -> str:
    return f"{1000 * estimate['low']:.2f}, {1000 * estimate['high']:.2f}"


def summary_of(
    measured: dict[int, dict[str, list[float]]], name: str, model: dict[str, Any]
) -> list[str]:
    lines = []
    for batch in map(str, BATCHES):
        real = {k: statistics.median(found[batch]) for k, found in measured.items()}
        guess = {k: model["tpot_s"][batch][k]["value"] for k in real}
        errors = [abs(guess[k] / real[k] - 1) for k in real]
        best, advised = min(real, key=real.__getitem__), min(guess, key=guess.__getitem__)
        lines.append(
            f"from {name}, batch {batch}: error {statistics.median(errors):.0%} (median), "
            f"{max(errors):.0%} (largest); best K {best}, advised {advised}, which is "
            f"{real[advised] / real[best] - 1:.0%} slower"
        )
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="keeps the runs, and goes on from those in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as name:
        folder = options.folder or Path(name)
        folder.mkdir(exist_ok=True)
        measured = {}
        for k in range(LARGEST + 1):
            measured[k] = run_engine(folder, k, options.repeats)
            print(f"K = {k} ran", file=sys.stderr, flush=True)
        models = {
            f"K = {LARGEST}": predictions(folder, ()),
            f"K = {LARGEST} and {SECOND}": predictions(folder, (SECOND,)),
        }
        rows = lengths(folder)
    print_table(measured, models)
    print_lengths(rows)
    if options.json:
        facts = {
            "command": "make prediction",
            "cores": os.cpu_count(),
            "vllm": importlib.metadata.version("vllm-cpu"),
            "repeats": options.repeats,
            "measured_tpot_s": {str(k): found for k, found in measured.items()},
            "predicted": models,
            "acceptance_length": rows,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
