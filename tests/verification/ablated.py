"""Print what `ablate` says of the shipped drafters, and of drafters with one known cause.

PYTHONPATH=.:tests python -m verification.ablated
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from benchmarks.calibration.causes import PARTS, SEEDS, ablated
from driftscope.cli.app import app
from driftscope_lab.trio import trio_path


def main() -> int:
    """Print both tables; exit with 1 if the command fails or a rate breaches its bound."""
    failed = [name for name in ("eagle3", "eagle31") if not _ablated(name)]
    rows, missed = ablated.measure(SEEDS, lambda _: None)
    table = Table("cause", "loss", *PARTS, title=f"Share of {SEEDS} seeds whose part excludes 0")
    for row in rows:
        rates = (f"{row.figures[f'{part}_found']:.0%}" for part in PARTS)
        table.add_row(row.world, f"{100 * row.figures['loss']:+.1f}", *rates)
    Console().print(table)
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
