"""Files of a report, which `analyze`, `bench` and `demo` write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from driftscope.boundary.files import STDOUT
from driftscope.cli.screens import analyze_output
from driftscope.cli.shared.report_format import Format
from driftscope.cli.shared.run_choice import RunChoice
from driftscope.errors import UsageError
from driftscope.json_report.report import to_json
from driftscope.pipeline import Analysis
from driftscope_reports.formats import write
from driftscope_reports.report_files import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Place and format of a report to write."""

    path: Path
    """File of the report."""
    format: Format = Format.HTML
    json_path: Path | None = None
    """File of the figures as JSON, in addition to the report; STDOUT prints them, and the table
    then goes to stderr."""


def write_reports(choice: RunChoice, files: ReportFiles, *, quiet: bool = False) -> Analysis:
    """Analyse the chosen runs, write the report's files, print its table unless `quiet`, and return
    the analysis.

    Raises DriftscopeError for runs that cannot be used, and OSError for files that cannot be
    written.
    """
    if files.json_path == files.path:
        raise UsageError(f"--json and --output both name {files.path}; give two files")
    analysis = choice.analysis(quiet=quiet)
    existing = _existing(files)
    command = choice.command_line(files.path)
    written = write(analysis, files.format, files.path, command=command)
    prints_json = files.json_path == STDOUT
    if prints_json:
        typer.echo(to_json(analysis), nl=False)
    elif files.json_path is not None:
        write_text(files.json_path, to_json(analysis))
        written.append(files.json_path)
    if not quiet:
        analyze_output.show_table(analysis, stderr=prints_json or files.path == STDOUT)
        analyze_output.say_where(
            analysis,
            [path for path in written if path != STDOUT],
            replaced=existing,
            form=files.format,
        )
    return analysis


def _existing(files: ReportFiles) -> frozenset[Path]:
    """Return the files that are there already among those to be written."""
    named = [path for path in (files.path, files.json_path) if path is not None]
    return frozenset(path for path in named if path.is_file())
