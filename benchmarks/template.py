"""Print what each wrong chat template costs the shipped drafters, as a table.

PYTHONPATH=. python benchmarks/template.py [--limit 24] [--out DIR]

Runs `driftscope bench` with the `template` suite and prints its report's acceptance lengths (tokens
per round), each with its ratio to the right template on the same prompts, and the ratio of
EAGLE-3.1 to EAGLE-3, with 95 % intervals. Exits 1 unless all answers are those without speculation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OLD, NEW = "EAGLE-3", "EAGLE-3.1"
BENCH = (
    f"bench trio --drafter {OLD}=eagle3 --drafter {NEW}=eagle31 --no-spec -k 8 --every 1 "
    "--suite template --prompts trio"
)

Cells = dict[str, dict[str, Any]]
"""Cells of the report by condition."""


def measured(out: Path, limit: int) -> dict[str, Any]:
    """Return the report of the benchmark."""
    command = [sys.executable, "-m", "driftscope", *BENCH.split(), "--limit", str(limit)]
    subprocess.run([*command, "-o", str(out), "-q"], check=True)
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def cells(report: dict[str, Any], drafter: str) -> Cells:
    (replay,) = (each for each in report["replays"] if each["label"] == f"{drafter} (client)")
    return {cell["condition"]: cell for cell in replay["conditions"]}


def compared(report: dict[str, Any]) -> Cells:
    """Return the ratios of EAGLE-3.1 to EAGLE-3."""
    return {
        pair["condition"]: pair["length_ratio"]
        for pair in report["replays_compared"]
        if (pair["first"], pair["other"]) == (f"{OLD} (client)", f"{NEW} (client)")
    }


def same_answers(report: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return, by the other drafter, the number of answers identical to EAGLE-3's, and the total."""
    found: dict[str, tuple[int, int]] = {}
    for pair in report["replays_compared"]:
        same, of = found.get(pair["other"], (0, 0))
        found[pair["other"]] = same + pair["same_text"][0], of + pair["same_text"][1]
    return found


def said(ratio: dict[str, Any] | None) -> str:
    """Return a ratio and its interval as text."""
    if ratio is None:
        return ""
    ends = ratio["interval"]
    return f"{ratio['value']:.2f} [{ends['low']:.2f}, {ends['high']:.2f}]"


def show(old: Cells, new: Cells, ahead: Cells) -> None:
    print(f"| condition | {OLD} | to regular | {NEW} | to regular | {NEW} to {OLD} |")
    print("|---|---|---|---|---|---|")
    for name, cell in old.items():
        row = [name]
        for each in (cell, new[name]):
            row += [f"{each['mean_length']:.2f}", said(each["length_ratio"])]
        print("| " + " | ".join([*row, said(ahead[name])]) + " |")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report = measured(options.out or Path(name) / "bench", options.limit)
    show(cells(report, OLD), cells(report, NEW), compared(report))
    alike = same_answers(report)
    for other, (same, of) in alike.items():
        print(f"answers of {other} that are, letter by letter, those of {OLD}: {same} of {of}")
    return 0 if all(same == of for same, of in alike.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
