"""The `driftscope analyze` command."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.analysis.conditions.columns import COLUMNS
from driftscope.cli.shared.query_engine_option import DUCKDB, EngineOption

if TYPE_CHECKING:
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.pipeline import Analysis

STDOUT = Path("-")
WHERE = (
    "Only rows that meet a condition such as \"label = 'chat' and context > 4096\", over "
    f"{', '.join(COLUMNS)}; docs/conditions.md has the language."
)


class Format(StrEnum):
    """Format of the report."""

    HTML = "html"
    JSON = "json"
    MARKDOWN = "markdown"
    PNG = "png"


DEFAULT = {
    Format.HTML: Path("report.html"),
    Format.JSON: Path("report.json"),
    Format.MARKDOWN: Path("report.md"),
    Format.PNG: Path("report-pictures"),
}


def analyze(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories, or reports to read back."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="What to write, a folder for png; default: report.html, .json, .md or "
            "report-pictures.",
        ),
    ] = None,
    form: Annotated[
        Format,
        typer.Option("--format", help="html, json, markdown to paste, or png of every picture."),
    ] = Format.HTML,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the figures as JSON; - is stdout."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of a run, once per run; default: directory name."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="SEGMENT",
            help="Split runs by label, context, prompt, batch, temperature, structured, finish, "
            "execution, runner, mode, rank, replica, hour, or a span of time such as 10m.",
        ),
    ] = "label",
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Run to compare speed and findings with, such as one without speculation.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help=WHERE,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only the end of runs: 30m, 2h, or a time in ISO 8601."),
    ] = None,
    engine: EngineOption = DUCKDB,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Turn run directories into a drift report: one offline HTML file, and JSON on demand.

    Several runs are shown side by side in one report. A report can be given in place of a run: its
    data is read back from it.
    """
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.cli.shared.run_labels import labels_of

    labels = labels_of(runs, label)
    path = output or DEFAULT[form]
    write_reports(
        runs,
        labels=labels,
        html=path,
        json_path=json_file,
        quiet=quiet,
        form=form,
        only=Filter(where=where, since=since),
        by=by,
        baseline=baseline,
        engine=engine,
    )


def write_reports(
    runs: Sequence[Path],
    *,
    labels: Sequence[str],
    html: Path,
    json_path: Path | None = None,
    quiet: bool = False,
    form: Format = Format.HTML,
    only: Filter | None = None,
    by: str = "label",
    baseline: Path | None = None,
    engine: str = DUCKDB,
) -> Analysis:
    """Analyse `runs`, write the report's files, print its table and return the analysis.

    `html` is the report's path, whatever its format. `json_path` may be STDOUT; the table then goes
    to stderr. Raises DriftscopeError for runs that cannot be used, and OSError for files that
    cannot be written.
    """
    from driftscope.cli.screens import analyze_output
    from driftscope.cli.shared.analysis_inputs import analysis_of
    from driftscope.errors import UsageError
    from driftscope.json_report.report import to_json
    from driftscope_reports.formats import write
    from driftscope_reports.report_files import write_text

    if json_path == html:
        raise UsageError(f"--json and --output both name {html}; give two files")
    analysis = analysis_of(
        runs, labels, quiet=quiet, only=only, by=by, baseline=baseline, engine=engine
    )
    command = analyze_output.command_line(runs, labels, html, baseline)
    written = write(analysis, form, html, command=command)
    if json_path == STDOUT:
        typer.echo(to_json(analysis), nl=False)
    elif json_path is not None:
        write_text(json_path, to_json(analysis))
    if not quiet:
        analyze_output.show_table(analysis, stderr=json_path == STDOUT)
        analyze_output.say_where(
            analysis, [*written, *([json_path] if json_path not in (None, STDOUT) else [])]
        )
    return analysis
