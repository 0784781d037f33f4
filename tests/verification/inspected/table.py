"""Results of `inspect` for planted mistakes, as a table: `make inspect`.

Each checkpoint is inspected as the command does, with the target and the trio's prompts. A mistake
is found if an error or a warning is there, and named if one of those that it should lead to is.
Healthy drafters are inspected by `false_alarms`.
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
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from support.checkpoints import TARGET, changed

from driftscope.cli.trial_run import TrialOptions, load_bench
from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckLevel
from driftscope.inspect.inspection import Inspection, Soundness, inspect_files
from driftscope.inspect.trial.result import Trial
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope.inspect.trial.verdict import LOST_BELOW, best_repair, verdict
from verification.inspected.plants import FURTHER, PUBLISHED, REVIEWED, Plant

K, PROMPTS = 5, 32
SHIPPED = {"eagle3": 3.76, "eagle31": 4.24}
"""Acceptance lengths of the shipped drafters on the trio's first 32 prompts."""
PLANTS = {"published": PUBLISHED, "reviewed": REVIEWED, "further": FURTHER}
OTHER_TEMPLATE = (
    "{% for m in messages %}### {{ m['role'] }}:\n{{ m['content'] }}\n\n{% endfor %}"
    "### assistant:\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result for one checkpoint."""

    name: str
    of: str
    before: str
    said: str
    """First sentence of the command."""
    ids: tuple[str, ...]
    """Errors and warnings, errors first."""
    notes: tuple[str, ...]
    answer: Soundness
    named: bool
    trial: Trial | None
    files_s: float
    trial_s: float


@functools.cache
def loaded(target: Path, prompts: int) -> Bench:
    """Return a target with its answers to prompts of the trio."""
    return load_bench(
        open_target(str(target)), TrialOptions(prompts="trio", k=K, most_prompts=prompts)
    )


def inspected(
    path: Path,
    name: str,
    of: str,
    causes: tuple[str, ...],
    bench: Bench,
    target: Path = TARGET,
    k: int = K,
    before: str = "",
) -> Row:
    """Inspect one checkpoint."""
    start = time.perf_counter()
    inspection = inspect_files(str(path), str(target))
    files_s = time.perf_counter() - start
    start = time.perf_counter()
    try:
        drafter = open_drafter(str(path))
        trial = run_trial(drafter, bench.facts.layers, lambda: bench, k)
        inspection = inspection.with_results(tuple(verdict(trial, inspection.results)), trial)
    except CheckpointError as error:
        sys.stderr.write(f"{name}: {error}\n")
    row = _row(inspection, name, of, causes, files_s, time.perf_counter() - start)
    return replace(row, before=before)


def _row(
    inspection: Inspection,
    name: str,
    of: str,
    causes: tuple[str, ...],
    files_s: float,
    run_s: float,
) -> Row:
    ids, notes = (
        tuple(one.id for one in inspection.results if (one.level is CheckLevel.NOTE) is note)
        for note in (False, True)
    )
    return Row(
        name=name,
        of=of,
        before="",
        said=inspection.conclusion,
        ids=ids,
        notes=notes,
        answer=inspection.answer,
        named=any(one in causes for one in (*ids, *notes)) if causes else bool(ids),
        trial=inspection.trial,
        files_s=files_s,
        trial_s=run_s,
    )


def made(folder: Path, plant: Plant) -> tuple[Path, Path]:
    """Write a planted drafter and its target, and return their folders."""
    drafter = changed(folder / "drafter", plant.of, config=plant.config, weights=plant.weights)
    others, own = plant.templates
    if plant.target is None and others is None:
        return drafter, TARGET
    target = changed(folder / "target", "target", weights=plant.target)
    for file in TARGET.iterdir():
        if not (target / file.name).exists():
            shutil.copy(file, target / file.name)
    settings = target / "tokenizer_config.json"
    fields = json.loads(settings.read_text())
    if own is not None:
        shutil.copy(TARGET / "tokenizer.json", drafter / "tokenizer.json")
        (drafter / "tokenizer_config.json").write_text(settings.read_text())
    if others is not None:
        settings.write_text(json.dumps({**fields, "chat_template": OTHER_TEMPLATE}))
    return drafter, target


def planted(folder: Path, plants: Sequence[Plant], prompts: int) -> Iterator[Row]:
    """Inspect planted mistakes."""
    for number, plant in enumerate(plants):
        drafter, target = made(folder / str(number), plant)
        bench = loaded(target, prompts)
        yield inspected(
            drafter, plant.name, plant.of, plant.causes, bench, target, before=plant.before
        )
        if target != TARGET:
            loaded.cache_clear()


def loses(row: Row) -> float | None:
    """Return the share of the shipped drafter's length that is lost on the trio's prompts; None if
    the drafter was not run."""
    return 1 - row.trial.acceptance.mean_length / SHIPPED[row.of] if row.trial else None


def line(row: Row) -> str:
    """Return one row of the table in Markdown."""
    best = best_repair(row.trial) if row.trial else None
    lost = loses(row)
    cells = (
        row.of,
        row.name,
        f"{row.trial.acceptance.mean_length:.2f}" if row.trial else "not run",
        "" if lost is None else f"{lost:.0%}",
        f"{best.acceptance.mean_length:.2f}" if best else "",
        row.before,
        row.said,
        ", ".join((*row.ids, *(f"note {name}" for name in row.notes))) or "nothing",
        "yes" if row.named else "",
        f"{row.files_s:.1f} + {row.trial_s:.0f} s",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m verification.inspected.table")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--plants", choices=[*PLANTS], nargs="*", default=[*PLANTS])
    parser.add_argument("--only", default="", help="plants whose name holds these words")
    options = parser.parse_args()
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    titles = "of", "checkpoint", "accepts", "loses", "repaired", "said before", "said now", "found"
    print(f"| {' | '.join((*titles, 'named', 'time'))} |")
    print("|" + "---|" * (len(titles) + 2))
    counts = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.plants:
            plants = [plant for plant in PLANTS.get(kind, ()) if options.only in plant.name]
            rows = list[Row]()
            for row in planted(Path(folder) / kind, plants, options.prompts):
                rows.append(row)
                print(line(row), flush=True)
            named = sum(row.named for row in rows)
            clear = [row for row in rows if row.answer in (Soundness.SOUND, Soundness.NOT_COMPARED)]
            costly = sum((loses(row) or 0) > 1 - LOST_BELOW for row in clear)
            sound = sum(row.answer is Soundness.SOUND for row in rows)
            counts.append(
                f"{kind}: {len(rows)}, {named} named, {len(clear)} with nothing wrong found, of "
                f"which {costly} lose more than a tenth, {sound} called sound"
            )
    print("\n" + "\n".join(counts))


if __name__ == "__main__":
    main()
