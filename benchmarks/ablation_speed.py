"""Measure how long `driftscope ablate` takes on the shipped pair: 200 prompts, 20 positions of each
answer, 8 interventions, K = 4.

The prompts ask the target to continue files of Python's standard library, as those that it was
trained for do. The command runs in a process of its own; start and loading count.

    PYTHONPATH=. python benchmarks/ablation_speed.py [--prompts 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.results_file import ResultsFile
from driftscope_lab.trio import trio_path

PROMPTS, POSITIONS, K = 200, 20, 4
INTERVENTIONS = (
    "right-tokens",
    "right-states",
    "right-both",
    "pin-size",
    "hide-chain",
    "hide-sink",
    "restore-sink",
    "served-dtype",
)
WITHIN_S = 300.0
"""Goal for the whole command on two idle cores, in seconds."""
SYSTEM_TEXT = "You write Python library code."
LINES = 12
"""Lines of a file that a prompt shows."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        facts = measured(Path(folder), wanted.prompts)
    verdict = (
        f"{facts['prompts']} prompts, {facts['positions']:,} positions, {len(INTERVENTIONS)} "
        f"interventions: {facts['wall_s']:.0f} s on {os.cpu_count()} cores "
        f"({facts['cpu_s']:.0f} s of CPU; load {facts['load_before']:.1f} before, "
        f"{facts['load_after']:.1f} after; OMP_NUM_THREADS={facts['omp_threads']})"
    )
    print(verdict)
    ok = facts["wall_s"] <= WITHIN_S
    file = ResultsFile(wanted.json, "cpu", again=True)
    file.write(complete=True, ok=ok, verdict=verdict, **facts)
    return 0 if ok else 1


def measured(folder: Path, prompts: int) -> dict[str, Any]:
    """Run the command, and return its times and what it measured."""
    asked = folder / "prompts.jsonl"
    rows = [json.dumps({"messages": each}) for each in islice(conversations(), prompts)]
    asked.write_text("\n".join(rows) + "\n", encoding="utf-8")
    output = folder / "ablation.json"
    load, before, start = os.getloadavg()[0], _cpu_s(), time.monotonic()
    subprocess.run(_command(asked, output, prompts), check=True, stdout=subprocess.DEVNULL)
    facts: dict[str, Any] = {
        "wall_s": time.monotonic() - start,
        "cpu_s": _cpu_s() - before,
        "load_before": load,
    }
    facts["load_after"] = os.getloadavg()[0]
    facts["omp_threads"] = os.environ.get("OMP_NUM_THREADS", "unset")
    document = json.loads(output.read_text())
    return {**facts, "prompts": document["prompts"], "positions": document["positions"]}


def conversations() -> Iterator[list[dict[str, str]]]:
    """Yield conversations about the files of the standard library, in the order of their names."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*/*.py")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        middle = len(lines) // 2
        shown = "\n".join(lines[middle : middle + LINES])
        if len(lines) > 4 * LINES:
            asked = f"Continue {path.parent.name}/{path.name}:\n{shown}"
            yield [
                {"role": "system", "content": SYSTEM_TEXT},
                {"role": "user", "content": asked},
            ]


def _command(asked: Path, output: Path, prompts: int) -> list[str]:
    folder = trio_path()
    words = ["ablate", str(folder / "eagle3"), "--target", str(folder / "target")]
    words += ["--prompts", str(asked), "--most-prompts", str(prompts), "--k", str(K)]
    words += ["--positions", str(POSITIONS), "--interventions", ",".join(INTERVENTIONS)]
    return [sys.executable, "-m", "driftscope", *words, "-o", str(output)]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
