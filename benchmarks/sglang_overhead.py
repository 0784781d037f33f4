"""Measure the cost of recording in SGLang on a CPU: off, at the default budget, every round.

    PYTHONPATH=.:tests python benchmarks/sglang_overhead.py [--rounds 2] [--json FILE]

The environment that `make sglang` builds must be there. The engines run one after another, each
configuration in turn, so that a slow phase of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from support.sglang_process.job import VERSION, Job, run_job

CONFIGURATIONS: dict[str, dict[str, str]] = {
    "without": {},
    "default budget": {"BUDGET": "0.01"},
    "every round": {"EVERY": "1"},
}
BATCHES = 7
"""Times that each engine generates for all prompts, one at a time; the first is a warm-up."""


def seconds_per_token(probe: dict[str, str], folder: Path) -> list[float]:
    """Return the mean time per token of each batch after the first."""
    job = Job(drafter="eagle31", probe=probe, sizes=(1,) * BATCHES, requests=4)
    outcome = run_job(job, folder)
    return [
        batch["seconds"] / sum(len(request["token_ids"]) for request in batch["requests"])
        for batch in outcome.batches[1:]
    ]


def measured(rounds: int) -> dict[str, list[float]]:
    """Return the times of each configuration, over all its engines."""
    found: dict[str, list[float]] = {name: [] for name in CONFIGURATIONS}
    with tempfile.TemporaryDirectory(prefix="driftscope-sglang-") as folder:
        for number in range(rounds):
            for name, probe in CONFIGURATIONS.items():
                found[name] += seconds_per_token(probe, Path(folder) / f"{name} {number}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="engines per configuration")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measured(given.rounds)
    base = statistics.median(found["without"])
    print(f"SGLang {VERSION}, load average {os.getloadavg()[0]:.1f}: ms per token, batch 1")
    print(f"{'':16} {'median':>8} {'least':>8} {'most':>8} {'of without':>11}")
    for name, times in found.items():
        middle = statistics.median(times)
        print(
            f"{name:16} {1e3 * middle:8.2f} {1e3 * min(times):8.2f} {1e3 * max(times):8.2f} "
            f"{middle / base:11.3f}"
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
