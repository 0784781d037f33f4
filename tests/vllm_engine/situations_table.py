"""What is recorded in each situation, held against the float64 reference. `make situations`.

Where vLLM's V1 runner fills slots of the drafter's cache with a wrong token, the reference does
too; chains with slots that it never filled are not compared. Both are counted, and how many of them
are flagged.
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from pathlib import Path

from vllm_engine.job import Outcome, run_jobs
from vllm_engine.situations import SITUATION_JOBS, asks_of
from vllm_engine.situations_truth import Compared, compared


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="driftscope-situations-") as folder:
        outcomes = run_jobs(SITUATION_JOBS, Path(folder))
        print(f"{'engine':10} {'situation':12} {'chains':>6} {'drafted =':>10} {'mass err':>9} "
              f"{'RMS rel':>9} {'wrong slots':>12} {'flagged':>8}")  # fmt: skip
        for name, job in SITUATION_JOBS.items():
            if job.probe:
                print_table(name, compared(outcomes[name], asks_of(job)))
            elif name.endswith(" off"):
                print(f"{name.removesuffix(' off'):10} output as without the probe: "
                      f"{_same(outcomes[name.removesuffix(' off')], outcomes[name])}")  # fmt: skip


def print_table(name: str, chains: list[Compared]) -> None:
    """A line for each situation of an engine."""
    by_situation: defaultdict[str, list[Compared]] = defaultdict(list)
    for chain in chains:
        by_situation[chain.name.rstrip("0123456789")].append(chain)
    for situation, mine in by_situation.items():
        wrong = [chain for chain in mine if chain.wrong or chain.empty]
        right = [chain for chain in mine if not chain.empty]
        print(f"{name:10} {situation:12} {len(mine):6} "
              f"{sum(chain.drafted_equal for chain in right):5}/{len(right):<4} "
              f"{max((chain.mass_error for chain in right), default=math.nan):9.1e} "
              f"{max((chain.rms_error for chain in right), default=math.nan):9.1e} {len(wrong):12} "
              f"{sum(chain.row['chunked_prefill'] for chain in wrong):8}")  # fmt: skip


def _same(on: Outcome, off: Outcome) -> str:
    found = [
        first["requests"][name] == second["requests"][name]
        for first, second in zip(on.batches, off.batches, strict=True)
        for name in first["requests"]
    ]
    return f"{sum(found)} of {len(found)} requests"


if __name__ == "__main__":
    main()
