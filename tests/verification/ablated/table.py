"""Print what `ablate` says of the shipped drafters, and of drafters with one known cause.

PYTHONPATH=tests python -m verification.ablated.table
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console
from rich.table import Table
from support.constructed_drafter import CAUSES, decomposition_of
from typer.testing import CliRunner

from driftscope.ablate.decomposition import Decomposition
from driftscope.cli.app import app
from driftscope_lab.trio import trio_path

SEEDS = 50
PARTS = ("tokens", "states", "rest")


def main() -> int:
    """Print both tables; exit with 1 if the command fails."""
    failed = [name for name in ("eagle3", "eagle31") if not _ablated(name)]
    table = Table("cause", "loss", *PARTS, title=f"Share of {SEEDS} seeds whose part excludes 0")
    for cause in CAUSES:
        found = [decomposition_of(cause, seed) for seed in range(SEEDS)]
        loss = np.mean([each.loss.value for each in found])
        rates = (f"{_rate(found, name):.0%}" for name in PARTS)
        table.add_row(cause, f"{100 * loss:+.1f}", *rates)
    Console().print(table)
    return 1 if failed else 0


def _ablated(drafter: str) -> bool:
    folder = trio_path()
    words = ["ablate", str(folder / drafter), "--target", str(folder / "target")]
    done = CliRunner().invoke(app, [*words, "--prompts", "trio", "--k", "4"])
    print(done.output)
    return done.exit_code == 0


def _rate(found: list[Decomposition], name: str) -> float:
    parts = (getattr(each, name).interval for each in found)
    return float(np.mean([part is not None and part.excludes_zero() for part in parts]))


if __name__ == "__main__":
    sys.exit(main())
