"""Check intervals, comparisons, gates, findings and advice on simulated runs of known truth.

Each table is measured in worlds where the conclusion must be drawn, where it must not, and where it
is tempting. Exits with 1, and names the figure, if one does not meet its bound.

    PYTHONPATH=.:tests python -m benchmarks.calibration [--trials 1000] [--only TABLE ...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.calibration.table import TABLES

for module in sorted(Path(__file__).parent.glob("[!_]*.py")):
    import_module(f"benchmarks.calibration.{module.stem}")


def main(argv: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Measure the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="tables that are not asked for stay as they are")
    parser.add_argument("--only", choices=TABLES, nargs="+", default=list(TABLES))
    options = parser.parse_args(argv)
    missed: list[str] = []
    for name in options.only:
        rows, breaches = TABLES[name].measure(options.trials, say)
        missed += breaches
        if options.json:
            plain = [{"world": row.world, **row.figures} for row in rows]
            keep(options.json, name, plain, options.trials)
    for line in missed:
        say(f"breach: {line}")
    return 1 if missed else 0


def keep(path: Path, name: str, rows: list[dict[str, Any]], trials: int) -> None:
    """Add a table and its number of trials to the results as soon as it is complete: all tables
    together take an hour."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content[name] = rows
    content["trials"] = {**content.get("trials", {}), name: trials}
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
