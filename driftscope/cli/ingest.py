"""The `driftscope ingest` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ingest(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Result files of other engines and tools."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="Format of the files; see --list."),
    ] = None,
    formats: Annotated[
        bool, typer.Option("--list", help="List the formats, and what each can and cannot give.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="RUN",
            help="Write the requests of one file, or its sums, as a run for analyze, compare and "
            "check.",
        ),
    ] = None,
    window: Annotated[
        bool,
        typer.Option(
            "--window",
            help="Take two files as two scrapes of one server's metrics page, the earlier first, "
            "and read the time between them.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Read acceptance and times from other tools' result files, in one convention.

    Lengths count the target's own token of each round, rates are shares of all rounds. What a
    reader took for granted is printed with its figures, and so are figures of one file that do not
    fit together. What a file does not hold is a dash.
    """
    from driftscope.cli.screens.ingest import print_figures, print_formats, write_to
    from driftscope.errors import UsageError
    from driftscope.ingest.catalogue import READERS, to_json
    from driftscope.ingest.catalogue import ingest as read

    if formats:
        print_formats(READERS.values())
        return
    if not files:
        raise UsageError("no file: give result files, or --list for the formats")
    if window:
        from driftscope.ingest.prometheus import two_scrapes

        found = two_scrapes(files)
    elif output is not None and len(files) > 1:
        raise UsageError("-o: a run is written from one file; give them one by one")
    else:
        found = [(path, *read(path, form)) for path in files]
    if output is not None:
        write_to(output, *found[0])
    if as_json:
        typer.echo(to_json(found), nl=False)
    else:
        print_figures(found)
