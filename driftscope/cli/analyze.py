"""`driftscope analyze`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from driftscope.analysis.analyze import Analysis

STDOUT = Path("-")


def analyze(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML report to write.")
    ] = Path("report.html"),
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the figures as JSON; - is stdout."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of a run, once per run; default: directory name."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Turn run directories into a drift report: one offline HTML file, and JSON on demand.

    Several runs stand side by side in one report.
    """
    from driftscope.cli.labels import labels_of

    labels = labels_of(runs, label)
    write_reports(runs, labels=labels, html=output, json_path=json_file, quiet=quiet)


def write_reports(
    runs: Sequence[Path],
    *,
    labels: Sequence[str],
    html: Path,
    json_path: Path | None = None,
    quiet: bool = False,
) -> Analysis:
    """Analyse `runs`, write the report's files and print its table; the analysis is returned.

    `json_path` may be STDOUT; the table then goes to stderr. Raises DriftscopeError for runs that
    cannot be used, OSError for files that cannot be written.
    """
    from driftscope.analysis.analyze import conclude
    from driftscope.analysis.senders import is_sender, summarise_sender
    from driftscope.analysis.summarise import summarise
    from driftscope.analysis.tables import open_run
    from driftscope.cli import talk
    from driftscope.cli.progress import steps
    from driftscope.errors import UsageError
    from driftscope.trace.manifest import read_manifest
    from driftscope.trace.reader import read_trace
    from driftscope_reports.files import write_text
    from driftscope_reports.html import to_html
    from driftscope_reports.summary_json import to_json

    if json_path == html:
        raise UsageError(f"--json and --output both name {html}; give two files")
    named = list(zip(runs, labels, strict=True))
    summaries, replays, servers = [], [], []
    for run, label in steps(named, "analysing", quiet=quiet):
        if is_sender(read_manifest(run)):
            replays.append((run, label))
        else:
            summaries.append(summarise(open_run(run), label))
            servers.append(run)
    traces = [read_trace(run) for run in servers] if replays else []
    senders = [summarise_sender(read_trace(run), label, traces) for run, label in replays]
    analysis = conclude(summaries, senders)
    write_text(html, to_html(analysis, command=talk.command_line(runs, labels, html)))
    if json_path == STDOUT:
        typer.echo(to_json(analysis), nl=False)
    elif json_path is not None:
        write_text(json_path, to_json(analysis))
    if not quiet:
        talk.show_table(analysis, stderr=json_path == STDOUT)
        talk.say_where(analysis, [html, *([json_path] if json_path not in (None, STDOUT) else [])])
    return analysis
