"""The `driftscope analyze` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.boundary.files import STDOUT
from driftscope.cli import options

ENDINGS = {
    options.Format.HTML: ".html",
    options.Format.JSON: ".json",
    options.Format.MARKDOWN: ".md",
}


def analyze(
    runs: options.RunsArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, or - for stdout; default: report.html, .json or .md. A file that "
            "is there is replaced.",
        ),
    ] = None,
    form: Annotated[
        options.Format | None,
        typer.Option(
            "--format",
            help="html, json, or markdown (to paste); default: FILE's ending, or html.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Also print the figures as JSON.")
    ] = False,
    label: options.NamesOption = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="SEGMENT",
            help="Split runs by label, context, prompt, batch, temperature, structured, finish, "
            "execution, runner, mode, replica, k, region, language, boundary, copied, hour, "
            "or a time span such as 10m.",
        ),
    ] = "label",
    baseline: options.BaselineOption = None,
    where: options.WhereOption = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only the end of each run: the last 30m or 2h, or from a time in ISO 8601.",
        ),
    ] = None,
    cluster: options.ClusterOption = None,
    engine: options.EngineOption = options.DUCKDB,
    quiet: options.QuietOption = False,
) -> None:
    """Turn run directories into a drift report: one offline HTML file, and JSON on demand.

    Several runs are shown side by side in one report.
    """
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.cli.run_reports import write_reports
    from driftscope.pipeline import Inputs
    from driftscope.trace.runs import labels_of

    ending = "" if output is None else output.suffix.lower()
    form = form or next((f for f, e in ENDINGS.items() if e == ending), options.Format.HTML)
    write_reports(
        Inputs(
            sources=runs,
            labels=labels_of(runs, label),
            baseline=baseline,
            only=Filter(where=where, since=since),
            by=by,
            engine=options.maker_of(engine),
            cluster=cluster,
        ),
        output or Path(f"report{ENDINGS[form]}"),
        form,
        json_path=STDOUT if as_json else None,
        quiet=quiet,
    )
