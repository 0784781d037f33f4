"""Train a better trio with the large recipe on a GPU, two seeds, and measure it on held-out text.

python3 benchmarks/cuda/trio.py --work DIR [--json FILE] [--device cpu] [--corpus-cache DIR]

The corpus's wheels (`corpus-large.txt`) are read from `--corpus-cache`, default WORK/corpus, which
must be filled by hand on an offline host; elsewhere pip fetches missing ones. Training resumes from
its checkpoints in WORK/seed-N, evaluation from its records there. `--device cpu` runs the quick
recipe on driftscope's own source: its weights are useless.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.results_file import ResultsFile

REPO = Path(__file__).resolve().parents[2]
SEEDS = {"cuda": (0, 1), "cpu": (0,)}
CPU_PROMPTS = 1


def train(folder: Path, seed: int, options: argparse.Namespace) -> None:
    """Train with the command that users run; it resumes by itself and skips finished models."""
    if (folder / "trained").exists():
        return
    corpus = ["--corpus-cache", str(options.corpus_cache or options.work / "corpus")]
    recipe = ["--recipe", "large", "--device", "cuda"]
    if options.device == "cpu":
        recipe, corpus = ["--recipe", "quick"], ["--corpus-dir", str(REPO / "driftscope")]
    _python("driftscope_lab.training.train", "-o", folder, "--seed", seed, *recipe, *corpus)
    (folder / "trained").touch()


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the evaluation's tables and findings."""
    few = ["--prompts", CPU_PROMPTS] if options.device == "cpu" else []
    out = folder / "held-out.json"
    _python(
        "driftscope_lab.evaluation.held_out",
        "--weights",
        folder,
        "--json",
        folder / "records.json",
        "--out",
        out,
        *few,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _python(module: str, *arguments: object) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    if code := subprocess.run(command, check=False).returncode:
        raise SystemExit(f"{module} ended with {code}")


def main() -> None:
    options = _parser().parse_args()
    file = ResultsFile(options.json, options.device)
    found: dict[str, Any] = dict(file.facts.get("seeds", {}))
    for seed in SEEDS[options.device]:
        if str(seed) in found:
            continue
        folder = options.work / f"seed-{seed}"
        train(folder, seed, options)
        found[str(seed)] = measure(folder, options)
        print("\n".join(found[str(seed)]["lines"]), flush=True)
        file.write(seeds=found)
    verdict = "; ".join(f"seed {seed}: {_verdict(one)}" for seed, one in found.items())
    if options.device == "cpu":
        verdict = "quick recipe, weights worth nothing: trained and measured"
    file.write(complete=True, verdict=verdict, seeds=found)
    print(verdict)


def _verdict(one: dict[str, Any]) -> str:
    sink = "a sink formed" if one["sink_formed"] else "no sink formed"
    losers = [
        f"{row['drafter']} {'loses' if row['loses'] else 'keeps'} it"
        for row in one["drafter_sinks"]
        if row["condition"] == "in_distribution" and row["has_one"]
    ]
    return ", ".join([sink, *(losers or ["the drafters have none to lose"])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="models and checkpoints")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--corpus-cache", type=Path, metavar="DIR")
    return parser


if __name__ == "__main__":
    main()
