"""The `driftscope export` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.options import RunArgument, WhereOption
from driftscope.vocabulary import Interchange


def export(
    run: RunArgument,
    form: Annotated[
        Interchange,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="speculation-profile (JSON 1.0, which Dynamo's simulator reads), sps-table "
            "(step costs for SGLang's DSpark planner), or rollup (sums by minute, as Parquet).",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, - for stdout; for a rollup a folder, or a URI such as "
            "s3://bucket/folder.",
        ),
    ],
    where: WhereOption = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the replica in a rollup; default: directory name."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Write a recorded run for other tools, or its sums by minute for a fleet."""
    import sys

    from driftscope.boundary.files import STDOUT
    from driftscope.boundary.json_document import files_text
    from driftscope.boundary.text import shown
    from driftscope.errors import UsageError
    from driftscope.interchange import write_as

    if as_json and output == STDOUT:
        raise UsageError("--json and -o - both print to stdout; give -o a file")
    written = write_as(form, run, output, where=where, label=label)
    if as_json:
        typer.echo(files_text(written), nl=False)
    elif output != STDOUT:
        sys.stderr.writelines(f"written: {shown(path)}\n" for path in written)
