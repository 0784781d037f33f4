"""The `driftscope export` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli import options
from driftscope.cli.options import named_run
from driftscope.vocabulary import Interchange


def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run directory.", callback=named_run, autocompletion=options.runs
        ),
    ],
    form: Annotated[
        Interchange,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="speculation-profile (JSON 1.0, which Dynamo's simulator reads), or sps-table "
            "(step costs for SGLang's DSpark planner).",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout.")
    ],
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help="Only the rounds that meet a condition, see `analyze`.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Write a recorded run for other tools."""
    import sys

    from driftscope.boundary.files import STDOUT
    from driftscope.boundary.json_document import files_text
    from driftscope.boundary.text import shown
    from driftscope.errors import UsageError
    from driftscope.interchange import write_as

    if as_json and output == STDOUT:
        raise UsageError("--json and -o - both print to stdout; give -o a file")
    write_as(form, run, output, where)
    if as_json:
        typer.echo(files_text([output]), nl=False)
    elif output != STDOUT:
        sys.stderr.write(f"written: {shown(str(output))}\n")
