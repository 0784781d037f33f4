"""Results of `inspect` for planted mistakes, and what live vLLM accepts of each, as a table: `make
inspect`.

Each checkpoint is inspected as the command does, with the target and the trio's prompts. A mistake
is found if an error or a warning is there, and named if one of those that it should lead to is.
With `--served`, each is inspected on the prompts that an engine is asked, then served once: it
holds if the served length lies in the promised interval, or if nothing was promised. Those results
are kept in a file, so that a run can go on later. Healthy drafters are inspected by `false_alarms`.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.checkpoints import TARGET, changed
from support.engine_process.job import Job, run_job
from support.inspected_prompts import ENDED, inspected_by_command, served_length

from driftscope.cli.trial_run import load_bench
from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckLevel
from driftscope.inspect.inspection import Soundness, inspect_files
from driftscope.inspect.trial.result import Trial
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope.inspect.trial.verdict import LOST_BELOW, best_repair, verdict
from verification.inspected.plants import FURTHER, PUBLISHED, REVIEWED, Plant

K, PROMPTS = 5, 32
SHIPPED = {"eagle3": 3.76, "eagle31": 4.24}
"""Acceptance lengths of the shipped drafters on the trio's first 32 prompts."""
PLANTS = {"published": PUBLISHED, "reviewed": REVIEWED, "further": FURTHER}
TITLES = "of | checkpoint | accepts | loses | repaired | said | found | named | time"
OTHER_TEMPLATE = (
    "{% for m in messages %}### {{ m['role'] }}:\n{{ m['content'] }}\n\n{% endfor %}"
    "### assistant:\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result for one checkpoint."""

    plant: Plant
    said: str
    """First sentence of the command."""
    ids: tuple[str, ...]
    """Errors and warnings, errors first."""
    notes: tuple[str, ...]
    answer: Soundness
    trial: Trial | None
    time_s: float

    @property
    def named(self) -> bool:
        """Whether a result names the cause, or there is one where none can."""
        causes = self.plant.causes
        return bool({*self.ids, *self.notes} & {*causes} if causes else self.ids)

    @property
    def lost(self) -> float | None:
        """Share of the shipped drafter's length that is lost on the trio's prompts; None if the
        drafter was not run."""
        length = self.trial and self.trial.acceptance.mean_length
        return None if length is None else 1 - length / SHIPPED[self.plant.of]


@functools.cache
def loaded(target: Path, prompts: int) -> Bench:
    """Return a target with its answers to prompts of the trio."""
    return load_bench(open_target(str(target)), "trio", prompts)


def inspected(path: Path, plant: Plant, bench: Bench, target: Path = TARGET, k: int = K) -> Row:
    """Inspect one checkpoint."""
    start = time.perf_counter()
    inspection = inspect_files(str(path), str(target))
    try:
        trial = run_trial(open_drafter(str(path)), bench.facts.layers, lambda: bench, k)
        inspection = inspection.with_results(tuple(verdict(trial, inspection.results)), trial)
    except CheckpointError as error:
        sys.stderr.write(f"{plant.name}: {error}\n")
    ids, notes = (
        tuple(one.id for one in inspection.results if (one.level is CheckLevel.NOTE) is note)
        for note in (False, True)
    )
    return Row(
        plant=plant,
        said=inspection.conclusion,
        ids=ids,
        notes=notes,
        answer=inspection.answer,
        trial=inspection.trial,
        time_s=time.perf_counter() - start,
    )


def made(folder: Path, plant: Plant) -> tuple[Path, Path]:
    """Write a planted drafter and its target, and return their folders."""
    drafter = changed(folder / "drafter", plant.of, config=plant.config, weights=plant.weights)
    others, own = plant.templates
    if plant.target is None and others is None:
        return drafter, TARGET
    target = changed(folder / "target", "target", weights=plant.target)
    if own is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TARGET / name, drafter / name)
    if others is not None:
        settings = target / "tokenizer_config.json"
        fields = json.loads(settings.read_text())
        settings.write_text(json.dumps({**fields, "chat_template": OTHER_TEMPLATE}))
    return drafter, target


def planted(folder: Path, plants: Sequence[Plant], prompts: int) -> Iterator[Row]:
    """Inspect planted mistakes."""
    for number, plant in enumerate(plants):
        drafter, target = made(folder / str(number), plant)
        yield inspected(drafter, plant, loaded(target, prompts), target)
        if target != TARGET:
            loaded.cache_clear()


def line(row: Row) -> str:
    """Return one row of the table in Markdown."""
    best = best_repair(row.trial) if row.trial else None
    cells = (
        row.plant.of,
        row.plant.name,
        f"{row.trial.acceptance.mean_length:.2f}" if row.trial else "not run",
        "" if row.lost is None else f"{row.lost:.0%}",
        f"{best.acceptance.mean_length:.2f}" if best else "",
        row.said,
        ", ".join((*row.ids, *(f"note {name}" for name in row.notes))) or "nothing",
        "yes" if row.named else "",
        f"{row.time_s:.0f} s",
    )
    return f"| {' | '.join(cells)} |"


def served(plant: Plant, folder: Path) -> dict[str, Any]:
    """Return what is promised and served; a refusal of the engine is its last line."""
    drafter, target = made(folder, plant)
    document = inspected_by_command(drafter, target, folder)
    trial = document["trial"]
    promised = trial if trial and not trial["not_promised"] and not trial["overflow"] else None
    served_target = str(target) if target != TARGET else "target"
    job = Job(drafter=str(drafter), target=served_target, probe={"EVERY": "1"}, sampling=ENDED)
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


def served_line(row: dict[str, Any]) -> str:
    """Return one row of the table of served plants in Markdown."""
    ends, length = row["interval"], row["served"]
    if ends is None:
        holds = row["promised"] is None
    else:
        holds = isinstance(length, float) and ends["low"] <= length <= ends["high"]
    promised = f"{row['promised']:.2f} [{ends['low']:.2f}, {ends['high']:.2f}]" if ends else "not"
    words = f"{length:.2f}" if isinstance(length, float) else length
    cells = row["name"], row["answer"], promised, words, "yes" if holds else "NO"
    return f"| {' | '.join(cells)} |"


def print_served(folder: Path, plants: Sequence[Plant], record: Path) -> None:
    """Serve the plants that the record lacks, and print all."""
    record.parent.mkdir(parents=True, exist_ok=True)
    record.touch()
    known = {(row := json.loads(text))["name"]: row for text in record.open()}
    print("| checkpoint | answer | promised | served | holds |\n|---|---|---|---|---|")
    for number, plant in enumerate(plants):
        if plant.name not in known:
            known[plant.name] = served(plant, folder / str(number))
            with record.open("a") as file:
                file.write(json.dumps(known[plant.name]) + "\n")
        print(served_line(known[plant.name]), flush=True)


def print_inspected(folder: Path, kind: str, plants: Sequence[Plant], prompts: int) -> str:
    """Print the rows of one kind of plants, and return their counts in words."""
    rows = list[Row]()
    for row in planted(folder / kind, plants, prompts):
        rows.append(row)
        print(line(row), flush=True)
    named = sum(row.named for row in rows)
    clear = [row for row in rows if row.answer in (Soundness.SOUND, Soundness.NOT_COMPARED)]
    costly = sum((row.lost or 0) > 1 - LOST_BELOW for row in clear)
    sound = sum(row.answer is Soundness.SOUND for row in rows)
    return (
        f"{kind}: {len(rows)}, {named} named, {len(clear)} with nothing wrong found, of which "
        f"{costly} lose more than a tenth, {sound} called sound"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m verification.inspected.table")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--plants", choices=[*PLANTS], nargs="*", default=[*PLANTS])
    parser.add_argument("--only", default="", help="plants whose name holds these words")
    parser.add_argument("--served", type=Path, help="serve them too; keeps results in this file")
    options = parser.parse_args()
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    chosen = {
        kind: [plant for plant in PLANTS[kind] if options.only in plant.name]
        for kind in options.plants
    }
    with tempfile.TemporaryDirectory() as folder:
        if options.served:
            every = [plant for plants in chosen.values() for plant in plants]
            print_served(Path(folder), [Plant("as shipped"), *every], options.served)
            return
        print(f"| {TITLES} |\n|{'---|' * len(TITLES.split('|'))}")
        counts = [
            print_inspected(Path(folder), kind, plants, options.prompts)
            for kind, plants in chosen.items()
        ]
    print("\n" + "\n".join(counts))


if __name__ == "__main__":
    main()
