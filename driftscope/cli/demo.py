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
NEXT = (
    "driftscope serve trio, then driftscope replay http://localhost:8000 --prompts trio --limit 40"
)
"""Commands that record the shipped models in a server of one's own, with prompts enough for a
conclusion."""


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

    Uses live vLLM if it can be imported, otherwise the plain PyTorch reference engine.
    """
    from driftscope.cli.run_reports import ReportFiles, RunChoice, write_reports
    from driftscope.distributions import needs_lab

    with needs_lab():
        from driftscope.cli.screens.demo import record_demo

    runs = record_demo(output, prompts)
    files = ReportFiles(path=output / "report.html", json_path=output / "report.json")
    write_reports(RunChoice(paths=tuple(runs.values()), labels=tuple(runs)), files, quiet=as_json)
    if as_json:
        typer.echo((output / "report.json").read_text(encoding="utf-8"), nl=False)
    sys.stderr.write(f"next: {NEXT}\n")
