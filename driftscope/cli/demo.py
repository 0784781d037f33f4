"""The `driftscope demo` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.options import real_folder

DEFAULT_FOLDER = Path("driftscope-demo")
PROMPTS = 64
"""Number of held-out prompts that are shipped."""
SPEED, LOAD, SPEED_PROMPTS = "speed", 4, 24
"""Folder, requests at once and prompts of the servers with and without a drafter."""
ROUNDS = 2
"""Times that each of them is started, in opposite order: with one start each, a machine that slows
down between them decides."""
DRAFTER = "eagle3.1=eagle31"
"""Label and name of that drafter."""
NEXT = "driftscope pays trio"
"""Command that answers more surely, and at three loads, whether speculation pays."""


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            callback=real_folder,
            help="Folder for runs/, report.html and report.json.",
        ),
    ] = DEFAULT_FOLDER,
    prompts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=PROMPTS,
            help="Number of held-out prompts, each of which is sent in two conditions; fewer take "
            "less time and leave wider intervals.",
        ),
    ] = PROMPTS,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the report as JSON.")] = False,
) -> None:
    """Record two small trained drafters, EAGLE-3 and EAGLE-3.1, and report how they drift.

    Uses live vLLM if it can be imported, otherwise the plain PyTorch reference engine. With vLLM it
    also serves EAGLE-3.1's target with and without the drafter, to say whether speculation pays.
    """
    from driftscope.cli.run_reports import ReportFiles, write_reports
    from driftscope.distributions import needs_lab
    from driftscope.pipeline import Inputs

    with needs_lab():
        runs = _record(output, prompts)
        runs |= _speed(output / SPEED, min(prompts, SPEED_PROMPTS)) if _has_vllm() else {}
    files = ReportFiles(path=output / "report.html", json_path=output / "report.json")
    inputs = Inputs(sources=list(runs.values()), labels=list(runs))
    write_reports(inputs, files, quiet=as_json)
    if as_json:
        typer.echo((output / "report.json").read_text(encoding="utf-8"), nl=False)
    sys.stderr.write(f"next: {NEXT}\n")


def _record(folder: Path, prompts: int) -> dict[str, Path]:
    """Record the runs of that many prompts afresh under `folder`/runs; return label -> run
    directory.

    Raises UsageError if something that is not a run is in the way.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from driftscope_lab.demo import DRAFTERS, requests
    from driftscope_lab.demo.launch import choose_engine, run_drafters

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


def _has_vllm() -> bool:
    from driftscope_lab.demo.launch import VLLM, choose_engine

    return choose_engine().name == VLLM


def _speed(folder: Path, prompts: int) -> dict[str, Path]:
    """Ask a server with a drafter and one without the same prompts; return label -> replay. {} with
    a word on what is missing if nothing can be sent."""
    import shutil

    from driftscope.cli.pays import contenders_of
    from driftscope.distributions import TRIO, MissingExtraError, needs
    from driftscope.errors import UsageError
    from driftscope_lab.demo import K

    try:
        with needs("replay"):
            from driftscope.cli.screens.replay import watched
            from driftscope.workloads.client.replay import Order
            from driftscope.workloads.contenders import ask_in_turn, recorded_in
            from driftscope.workloads.suites.plan import Level
            from driftscope.workloads.suites.prompts import prompts_of
            from driftscope.workloads.suites.suite import load_suite
    except MissingExtraError as error:
        sys.stderr.write(f"whether speculation pays is not measured: {error}\n")
        return {}
    for server in folder.glob("*"):
        _clear(server / "client")
        if {path.name for path in server.iterdir()} - {"server", "server.log"}:
            raise UsageError(f"{server}: is no server of a demo; give -o another folder")
        shutil.rmtree(server)
    sys.stderr.write(
        "driftscope demo: does it pay? Servers without a drafter and with one, in turn\n"
    )
    order = Order(
        url="",
        suite=load_suite("concurrency"),
        run=folder,
        levels=[Level(concurrency=LOAD)],
        limit=prompts,
        prompts=prompts_of(TRIO),
        note={"prompts": TRIO},
    )
    with watched(quiet=False) as watcher:
        servers = contenders_of(TRIO, [DRAFTER], [K], [])
        for _ in ask_in_turn(servers, order, folder, rounds=ROUNDS, watcher=watcher):
            pass
    return {label: run for run, label in recorded_in(folder) if run.name == "client"}


def _clear(run: Path) -> None:
    """Remove the run of an earlier demonstration; nothing else is ever deleted."""
    import shutil

    from driftscope.errors import UsageError
    from driftscope.trace.manifest import MANIFEST

    if not run.exists():
        return
    if not (run / MANIFEST).is_file() and any(set(run.iterdir()) - set(run.glob("status-*"))):
        raise UsageError(f"{run}: exists and is not a driftscope run; give -o another folder")
    shutil.rmtree(run)
