"""Results of `inspect` for planted mistakes and of healthy drafters, as a table: `make inspect`.

Each checkpoint is inspected as the command does, with the target and the trio's prompts. A mistake
is found if there is an error or a warning, and named right if one of the results that it should
lead to is there. A healthy drafter should have neither.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from support.checkpoints import TARGET, changed

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import Level
from driftscope.inspect.inspection import inspect_files
from driftscope.inspect.trial.result import Trial, best_repair, verdict
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope_lab.trio import Prompt, encode, load_prompts
from verification.inspected.checkpoints import PLANTED, Planted, healthy

K, PROMPTS, SEEDS = 5, 32, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result for one checkpoint."""

    name: str
    of: str
    ids: tuple[str, ...]
    """Errors and warnings, errors first."""
    right: bool
    trial: Trial | None
    files_s: float
    trial_s: float


def loaded(prompts: Sequence[Prompt]) -> Bench:
    """Return the target with its answers to prompts of the trio."""
    chosen = {each.id: encode(each.in_distribution) for each in prompts}
    return Bench(open_target(str(TARGET)), lambda _: chosen)


def inspected(path: Path, name: str, of: str, named: tuple[str, ...], bench: Bench) -> Row:
    """Inspect one checkpoint."""
    start = time.perf_counter()
    inspection = inspect_files(str(path), str(TARGET))
    files_s = time.perf_counter() - start
    results, trial = list(inspection.results), None
    start = time.perf_counter()
    try:
        drafter = open_drafter(str(path))
        trial = run_trial(drafter, bench.facts.layers, lambda: bench, K)
        results = [*verdict(trial), *results]
    except CheckpointError as error:
        sys.stderr.write(f"{name}: {error}\n")
    ids = tuple(each.id for each in results if each.level is not Level.NOTE)
    right = any(each in named for each in ids) if named else not ids
    trial_s = time.perf_counter() - start
    return Row(
        name=name, of=of, ids=ids, right=right, trial=trial, files_s=files_s, trial_s=trial_s
    )


def rows(folder: Path, planted: tuple[Planted, ...], seeds: int, bench: Bench) -> Iterator[Row]:
    """Inspect the planted mistakes, then the healthy drafters."""
    for number, each in enumerate(planted):
        path = changed(folder / str(number), each.of, config=each.config, weights=each.weights)
        yield inspected(path, each.name, each.of, each.named, bench)
    for name, of, path in healthy(folder, seeds):
        yield inspected(path, name, of, (), bench)


def line(row: Row) -> str:
    """Return one row of the table in Markdown."""
    best = best_repair(row.trial) if row.trial else None
    cells = (
        row.of,
        row.name,
        f"{row.trial.acceptance.mean_length:.2f}" if row.trial else "not run",
        f"{best.acceptance.mean_length:.2f}" if best else "",
        ", ".join(row.ids) or "nothing",
        "yes" if row.right else "NO",
        f"{row.files_s:.1f} + {row.trial_s:.0f} s",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m verification.inspected.table")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="re-trained drafters of each kind")
    options = parser.parse_args()
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    made, bench = [], loaded(load_prompts()[: options.prompts])
    print("| of | checkpoint | accepts | repaired | errors and warnings | right | time |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder), PLANTED, options.seeds, bench):
            made.append(row)
            print(line(row), flush=True)
    planted, sound = made[: len(PLANTED)], made[len(PLANTED) :]
    print(
        f"\nplanted: {sum(bool(row.ids) for row in planted)} of {len(planted)} found, "
        f"{sum(row.right for row in planted)} named right\n"
        f"healthy: {sum(bool(row.ids) for row in sound)} of {len(sound)} with an error or warning"
    )


if __name__ == "__main__":
    main()
