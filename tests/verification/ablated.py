"""Print what `ablate` says of the shipped drafters, and of drafters with one known cause.

PYTHONPATH=.:tests python -m verification.ablated
"""

from __future__ import annotations

import sys
from itertools import groupby

from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from benchmarks.calibration.causes import ABLATIONS, PARTS, SEEDS, ablations
from driftscope.cli.app import app
from driftscope_lab.trio import trio_path


def main() -> int:
    """Print both tables; exit with 1 if the command fails or a rate breaches its bound."""
    failed = [name for name in ("eagle3", "eagle31") if not _ablated(name)]
    rows = list(ablations(SEEDS))
    table = Table("cause", "loss", *PARTS, title=f"Share of {SEEDS} seeds whose part excludes 0")
    for cause, parts in groupby(rows, lambda row: row.world):
        each = list(parts)
        rates = (f"{part.found:.0%}" for part in each)
        table.add_row(cause, f"{100 * each[0].loss:+.1f}", *rates)
    Console().print(table)
    missed = ABLATIONS.breaches(rows, SEEDS)
    print("".join(f"breach: {line}\n" for line in missed), end="")
    return 1 if failed or missed else 0


def _ablated(drafter: str) -> bool:
    folder = trio_path()
    words = ["ablate", str(folder / drafter), "--target", str(folder / "target")]
    done = CliRunner().invoke(app, [*words, "--prompts", "trio", "--k", "8"])
    print(done.output)
    return done.exit_code == 0


if __name__ == "__main__":
    sys.exit(main())
