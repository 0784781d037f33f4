"""Records the phenomenon's evidence in live vLLM and prints it with the three criteria.

python -m driftscope_lab.phenomenon.run [--weights DIR] [-o OUT] [--prompts N]

Every drafter of every seed under DIR answers the held-out prompts in every condition. Runs that
OUT already has are not recorded again. OUT/figure.svg shows the figures by depth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from driftscope.analysis.query.row_filters import Filter
from driftscope.errors import DriftscopeError
from driftscope.pipeline import summarise
from driftscope_lab.phenomenon import evidence as tables
from driftscope_lab.phenomenon.engine import K
from driftscope_lab.phenomenon.estimates import sums_of
from driftscope_lab.phenomenon.evidence import Recorded, judged, svg
from driftscope_lab.phenomenon.recording import AS_TRAINED, record, seeds_of
from driftscope_lab.phenomenon.target_sink import target_lines
from driftscope_lab.trio import trio_path


def evidence(weights: Path, out: Path, prompts: int | None) -> dict[str, dict[str, Recorded]]:
    """Return what was recorded of each seed and drafter. Raises DriftscopeError."""
    found = {}
    for seed in seeds_of(weights):
        sys.stderr.write(f"recording {seed.name}\n")
        runs = record(weights, seed, out, prompts)
        found[seed.name] = {name: _recorded(run) for name, run in runs.items()}
    return found


def _recorded(run: Path) -> Recorded:
    trained = Filter(where=f"label = '{AS_TRAINED}'")
    drift = summarise(run, run.name, only=trained).attention_drift
    return Recorded(sums=sums_of(run, K), drift=drift.answer if drift else None)


def report(weights: Path, out: Path, prompts: int | None) -> Iterator[str]:
    """Yield the evidence and the answers, line by line. Raises DriftscopeError."""
    yield from target_lines(weights)
    found = evidence(weights, out, prompts)
    criteria = {seed: judged(*runs.values()) for seed, runs in found.items()}
    parts = (
        tables.lengths(found),
        tables.by_depth(found),
        tables.across_seeds(found),
        tables.answers(criteria),
    )
    for part in parts:
        yield ""
        yield from part
    (out / "figure.svg").write_text(svg(found), encoding="utf-8")
    (out / "criteria.json").write_text(
        json.dumps({s: {c.name: c.met for c in found} for s, found in criteria.items()}, indent=1)
        + "\n",
        encoding="utf-8",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Exit code 0: measured, whatever the answers; 1: an engine failed."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        for line in report(options.weights, options.output, options.prompts):
            sys.stdout.write(line + "\n")
    except DriftscopeError as error:
        sys.stderr.write(f"driftscope lab: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m driftscope_lab.phenomenon.run",
        description="Record the evidence of attention drift in the shipped models.",
    )
    parser.add_argument("--weights", type=Path, default=trio_path(), help="default: as shipped")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/phenomenon"))
    parser.add_argument("--prompts", type=int, metavar="N", help="only the first N")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
