"""`driftscope demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_FOLDER = Path("driftscope-demo")


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for runs/, report.html and report.json.")
    ] = DEFAULT_FOLDER,
) -> None:
    """Record two small trained drafters, EAGLE-3 and EAGLE-3.1, and report how they drift.

    In live vLLM where it can be imported, else in the plain PyTorch reference engine.
    """
    from driftscope.cli.analyze import write_reports
    from driftscope.lab_package import needs_lab

    with needs_lab():
        from driftscope.cli.shared.demo_runs import record_demo

    runs = record_demo(output)
    write_reports(
        list(runs.values()),
        labels=list(runs),
        html=output / "report.html",
        json_path=output / "report.json",
    )
