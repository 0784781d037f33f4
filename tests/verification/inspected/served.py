"""Planted drafters in real vLLM: what `inspect` promises, and what is served, as a table.

Each plant is inspected on the prompts that the engine is asked, then served once. It holds if the
served length lies in the promised interval, or if nothing was promised. Results are kept in a file,
so that a run can go on later.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from support.checkpoints import TARGET
from support.engine_process.job import Job, run_job
from support.inspected_prompts import inspected, served_length

from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.trial.target import ANSWER_TOKENS
from verification.inspected.plants import FURTHER, REVIEWED, Plant
from verification.inspected.table import made


def served(plant: Plant, folder: Path) -> dict[str, Any]:
    """Return what is promised and served; a refusal of the engine is its last line."""
    drafter, target = made(folder, plant)
    document = inspected(drafter, target, folder)
    trial = document["trial"]
    promised = trial if trial and not trial["not_promised"] and not trial["overflow"] else None
    job = Job(
        drafter=str(drafter),
        target=str(target) if target != TARGET else "target",
        probe={"EVERY": "1"},
        sampling={
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": False,
            "stop_token_ids": [EOS_ID],
        },
    )
    try:
        length: float | str = served_length(run_job(job, folder / "engine"))
    except RuntimeError as error:
        named = [line for line in str(error).splitlines() if "Error" in line]
        length = f"refused: {(named or ['?'])[-1].strip()[-90:]}"
    return {
        "name": plant.name,
        "answer": document["answer"],
        "promised": promised and promised["acceptance"]["mean_length"],
        "interval": promised and promised["acceptance"]["mean_length_interval"],
        "served": length,
    }


def holds(row: dict[str, Any]) -> bool:
    """Whether nothing was promised, or the served length lies in the promised interval."""
    ends = row["interval"]
    if ends is None:
        return row["promised"] is None
    return isinstance(row["served"], float) and ends["low"] <= row["served"] <= ends["high"]


def line(row: dict[str, Any]) -> str:
    """Return one row of the table in Markdown."""
    ends, length = row["interval"], row["served"]
    promised = f"{row['promised']:.2f} [{ends['low']:.2f}, {ends['high']:.2f}]" if ends else "not"
    words = f"{length:.2f}" if isinstance(length, float) else length
    holding = "yes" if holds(row) else "NO"
    return f"| {row['name']} | {row['answer']} | {promised} | {words} | {holding} |"


def main() -> None:
    """Serve the plants that the record lacks, and print all."""
    parser = argparse.ArgumentParser(prog="python -m verification.inspected.served")
    parser.add_argument("--record", type=Path, default=Path("build/served.jsonl"))
    parser.add_argument("--only", default="", help="plants whose name holds one of these, a|b")
    options = parser.parse_args()
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.touch()
    known = {(row := json.loads(text))["name"]: row for text in options.record.open()}
    wanted = options.only.split("|")
    print("| checkpoint | answer | promised | served | holds |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, plant in enumerate((Plant(name="as shipped"), *REVIEWED, *FURTHER)):
            if not any(words in plant.name for words in wanted):
                continue
            if plant.name not in known:
                known[plant.name] = served(plant, Path(folder) / str(number))
                with options.record.open("a") as file:
                    file.write(json.dumps(known[plant.name]) + "\n")
            print(line(known[plant.name]), flush=True)


if __name__ == "__main__":
    main()
