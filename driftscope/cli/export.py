"""The `driftscope export` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli import options
from driftscope.cli.options import OtlpOption, named_run
from driftscope.vocabulary import Interchange


def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run directory.", callback=named_run, autocompletion=options.runs
        ),
    ],
    otlp: OtlpOption = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write OpenMetrics text with the run's own times; - is stdout."
        ),
    ] = None,
    form: Annotated[
        Interchange | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Write --output: speculation-profile (JSON 1.0, which Dynamo's simulator "
            "reads), sps-table (step costs for SGLang's DSpark planner), aiperf (its records of "
            "requests, JSON lines), or parquet (all rows, in a folder).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="File or folder of --format."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            autocompletion=options.columns,
            help="With --format: only the rounds that meet a condition, see `analyze`.",
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.001, help="Seconds of run time between two points of a series."
        ),
    ] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written and sent as JSON.")
    ] = False,
) -> None:
    """Export a recorded run: as metrics and spans with their original times, or for other tools.

    `promtool tsdb create-blocks-from openmetrics FILE` reads the file into Prometheus.
    """
    if form is not None or output is not None:
        _as_files(form, run, output, where, as_json=as_json)
        return
    import os
    import sys
    from collections import Counter

    from driftscope.boundary.files import STDOUT, write_file
    from driftscope.boundary.json_document import files_text
    from driftscope.boundary.text import shown
    from driftscope.errors import UsageError
    from driftscope.telemetry import settings as telemetry
    from driftscope.telemetry.recorded_run import replays, send, to_openmetrics
    from driftscope.trace.reader import read_trace

    environ = {**os.environ, telemetry.PROMETHEUS: "", **({telemetry.OTLP: otlp} if otlp else {})}
    settings = None if prometheus and not otlp else telemetry.settings_from(environ)
    if settings is None and prometheus is None:
        raise UsageError("no destination: give --otlp URL, --prometheus FILE, or --format and -o")
    if as_json and prometheus == STDOUT:
        raise UsageError("--json and --prometheus - both print to stdout; give one of them a file")
    labels = () if settings is None else settings.labels
    regions = telemetry.regions_from(environ)
    trace = read_trace(run)
    replayed = list(replays(trace, interval_s=interval, labels=labels, regions=regions))
    files, sent = list[str](), Counter[str]()
    if prometheus is not None:
        text = to_openmetrics(replayed)
        if prometheus == STDOUT:
            typer.echo(text, nl=False)
        else:
            files.append(str(prometheus))
            write_file(prometheus, text.encode())
            name = shown(str(prometheus))
            sys.stderr.write(f"written: {name}\n")
            sys.stderr.write(
                f"next: promtool tsdb create-blocks-from openmetrics {name} DATA_DIRECTORY\n"
            )
    if settings is not None:
        for each in replayed:
            batches, spans = send(each, settings)
            sent.update(batches=batches, spans=spans)
            sys.stderr.write(f"sent: {batches} batches of metrics, {spans} spans\n")
    if as_json:
        typer.echo(files_text(files, sent), nl=False)


def _as_files(
    form: Interchange | None, run: Path, output: Path | None, where: str | None, *, as_json: bool
) -> None:
    import sys

    from driftscope.boundary.files import STDOUT
    from driftscope.boundary.json_document import files_text
    from driftscope.boundary.text import shown
    from driftscope.errors import UsageError
    from driftscope.interchange import write_as

    if form is None or output is None:
        raise UsageError("--format NAME and --output PATH belong together; give both")
    if output == STDOUT and (as_json or form is Interchange.PARQUET):
        raise UsageError(f"--output -: --json and --format {Interchange.PARQUET} need a path")
    written = write_as(form, run, output, where)
    if as_json:
        typer.echo(files_text(written), nl=False)
        return
    for path in written:
        if path != STDOUT:
            sys.stderr.write(f"written: {shown(str(path))}\n")
