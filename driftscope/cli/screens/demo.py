"""Recording of the demonstration's runs, with a progress bar for each drafter."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from driftscope.errors import UsageError
from driftscope.trace.manifest import MANIFEST
from driftscope_lab.demo import DRAFTERS, requests
from driftscope_lab.demo.launch import choose_engine, run_drafters


def record_demo(folder: Path, prompts: int) -> dict[str, Path]:
    """Record the runs of that many prompts afresh under `folder`/runs; return label -> run
    directory.

    Raises UsageError if something that is not a run is in the way.
    """
    runs = {label: folder / "runs" / label for label in DRAFTERS}
    for run in runs.values():
        _clear(run)
    engine, console = choose_engine(), Console(stderr=True)
    console.print(f"driftscope demo: {engine.reason}")
    total = len(requests(prompts))
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        bars = {label: progress.add_task(label, total=total) for label in DRAFTERS}

        def show(finished: dict[str, int]) -> None:
            for label, count in finished.items():
                progress.update(bars[label], completed=count)

        run_drafters(engine, folder, prompts, show)
    return runs


def _clear(run: Path) -> None:
    """Remove the run of an earlier demonstration; nothing else is ever deleted."""
    if not run.exists():
        return
    if not (run / MANIFEST).is_file() and any(set(run.iterdir()) - set(run.glob("status-*"))):
        raise UsageError(f"{run}: exists and is not a driftscope run; give -o another folder")
    shutil.rmtree(run)
