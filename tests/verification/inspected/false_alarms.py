"""Errors and warnings of `inspect` about healthy drafters, counted: `make inspect-healthy`.

Each drafter is a shipped one with other weights: with noise, or trained on. It is inspected as the
command does, on half of the trio's prompts, drawn by its seed; the other half is what it was
trained on. The command fails if more than MOST_ALARMS of the drafters have an error or a warning.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from driftscope.analysis.statistics.intervals import exact_interval
from driftscope_lab.trio import load_prompts
from verification.inspected.checkpoints import EAGLE3, EAGLE31, noisy, text_of, trained
from verification.inspected.table import Row, inspected, loaded

MOST_ALARMS = 0.05
"""Largest share of healthy drafters that may have an error or a warning."""
SEEDS = 30
"""Number of seeds, each with two drafters: 60 without an alarm show a share below 5 %."""
PROMPTS = 32
NOISE = (0.02, 0.1)
"""Noise on the weights, as a share of their size."""
Maker = Callable[[Path, str, int, torch.Tensor], Path]


def _with_training(folder: Path, name: str, seed: int, rows: torch.Tensor) -> Path:
    # The rate follows from the number within the kind, so that each kind has every rate.
    return trained(folder, name, seed // len(KINDS), rows)


def _with_noise(share: float, folder: Path, name: str, seed: int, _rows: torch.Tensor) -> Path:
    return noisy(folder, name, seed, share)


KINDS: dict[str, Maker] = {
    **{f"noise of {share:.0%}": partial(_with_noise, share) for share in NOISE},
    "trained on": _with_training,
}


def rows(folder: Path, seeds: int) -> Iterator[Row]:
    """Make and inspect both drafters of each seed."""
    prompts = load_prompts()
    text = text_of(prompts)
    for seed in range(seeds):
        order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(seed))
        bench = loaded([prompts[at] for at in order[:PROMPTS].tolist()])
        kind = list(KINDS)[seed % len(KINDS)]
        for name in (EAGLE3, EAGLE31):
            path = KINDS[kind](folder / f"{name}-{seed}", name, seed, text[order[PROMPTS:]])
            yield inspected(path, kind, name, (), bench)


def line(group: Sequence[Row]) -> str:
    """Return the line of the table about the drafters of one kind."""
    lengths = [row.trial.acceptance.mean_length for row in group if row.trial]
    found = Counter(each for row in group for each in row.ids)
    cells = (
        group[0].of,
        group[0].name,
        str(len(group)),
        f"{min(lengths):.2f} to {max(lengths):.2f}",
        str(sum(bool(row.ids) for row in group)),
        ", ".join(f"{name} ({count})" for name, count in found.items()) or "nothing",
    )
    return f"| {' | '.join(cells)} |"


def verdict(made: Sequence[Row]) -> tuple[str, bool]:
    """Return the sentence about all drafters, and whether the bound holds."""
    alarms = sum(bool(row.ids) for row in made)
    most = exact_interval(alarms, len(made)).high
    holds = alarms <= MOST_ALARMS * len(made)
    return (
        f"{alarms} of {len(made)} healthy drafters have an error or a warning: at most "
        f"{most:.1%} would (95 % interval). Allowed here: {MOST_ALARMS:.0%} of them."
    ), holds


def main() -> None:
    """Print the table; exit with 1 if there are more alarms than allowed."""
    parser = argparse.ArgumentParser(prog="python -m verification.inspected.false_alarms")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="each has two drafters")
    options = parser.parse_args()
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder), options.seeds):
            made.append(row)
            sys.stderr.write(f"{len(made)}: {line([row])} {row.trial_s:.0f} s\n")
    print("| drafter | weights | inspected | accepts | with an error or a warning | which |")
    print("|---|---|---|---|---|---|")
    for key in dict.fromkeys((row.of, row.name) for row in made):
        print(line([row for row in made if (row.of, row.name) == key]))
    sentence, holds = verdict(made)
    print(f"\n{sentence}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
