"""The runs that a command reads, and the reports that it writes of them."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Container, Iterable, Iterator, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from driftscope.boundary.files import STDOUT, check_folder, write_text
from driftscope.boundary.text import output_console, shown
from driftscope.cli.options import Format
from driftscope.errors import UsageError
from driftscope.json_report import to_json
from driftscope.pipeline import BY_LABEL, Analysis, Inputs, analyze
from driftscope_reports.terminal import render

T = TypeVar("T")


@contextlib.contextmanager
def progress_bar(*columns: ProgressColumn, quiet: bool) -> Iterator[Progress | None]:
    """Yield a bar that disappears at the end; None without a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None  # rich before 14.3 prints an empty line even where it shows no bar
        return
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress


def steps(
    items: Iterable[T], what: str, *, total: int | None = None, quiet: bool = False
) -> Iterator[T]:
    """Yield `items` one by one, with a bar. `total` is their number if they have no length."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns, quiet=quiet) as progress:
        if total is None and isinstance(items, Sized):
            total = len(items)
        task = progress.add_task(what, total=total) if progress else None
        for item in items:
            yield item
            if progress and task is not None:
                progress.advance(task)


def command_line(inputs: Inputs, output: Path) -> str:
    """Return the command line that writes the report `output` again."""
    words = ["driftscope", "analyze", *map(str, inputs.sources)]
    words += [word for label in inputs.labels for word in ("--label", label)]
    options = {
        "--baseline": inputs.baseline,
        "--where": inputs.only.where,
        "--since": inputs.only.since,
        "--by": inputs.by if inputs.by != BY_LABEL else None,
        "--cluster": inputs.cluster,
    }
    for name, value in options.items():
        words += [] if value is None else [name, str(value)]
    return shlex.join([*words, "-o", str(output)])


_PIPE_WIDTH = 100
"""Width in columns when the output is not a terminal and COLUMNS is not set."""
_RUN_WIDTH = 24
_REPLAY_WIDTH = 160


def show_table(analysis: Analysis, *, stderr: bool = False) -> None:
    """Print the figures to stdout, or to stderr if stdout is used for JSON."""
    width = max(_PIPE_WIDTH, (len(analysis.runs) + 2) * _RUN_WIDTH)
    width = max(width, _REPLAY_WIDTH if analysis.senders else 0)
    output_console(width, stderr=stderr).print(render(analysis), crop=False)


def say_where(
    analysis: Analysis,
    written: Sequence[Path],
    *,
    replaced: Container[Path] = (),
    form: Format = Format.HTML,
) -> None:
    """Print the warnings, the files written, which of them replaced a file, and what to do next.
    The table begins with the losses."""
    for note in (note for note in analysis.notes if note not in analysis.losses):
        sys.stderr.write(f"warning: {shown(note.line)}\n")
    for path in written:
        verb = "replaced" if path in replaced else "written"
        sys.stderr.write(f"{verb}: {shown(str(path))}\n")
    if written and form in _NEXT:
        sys.stderr.write(f"next: {_NEXT[form].format(shown(str(written[0])))}\n")


_NEXT = {
    Format.HTML: "open {} in a browser",
    Format.MARKDOWN: "gh pr comment --body-file {}",
}
"""Next step with a report, by its format."""


def _text(analysis: Analysis, form: Format, command: str) -> str:
    if form is Format.JSON:
        return to_json(analysis)
    if form is Format.MARKDOWN:
        from driftscope_reports.markdown import to_markdown

        return to_markdown(analysis)
    # Templates and plotly are imported only for a page.
    from driftscope_reports.html import to_html

    return to_html(analysis, command=command)


def write_reports(
    inputs: Inputs,
    path: Path,
    form: Format = Format.HTML,
    *,
    json_path: Path | None = None,
    quiet: bool = False,
) -> Analysis:
    """Analyse the runs, write the report to `path`, print its table unless `quiet`, and return
    the analysis. `json_path`: file of the figures as JSON, in addition to the report; STDOUT prints
    them, and the table then goes to stderr.

    Raises DriftscopeError for runs that cannot be used, and OSError for files that cannot be
    written.
    """
    if json_path == path:
        raise UsageError("--json and --output - both print to stdout; give the report a file")
    check_folder(path)
    analysis = analyze(inputs, partial(steps, what="analysing", quiet=quiet))
    named = [file for file in (path, json_path) if file is not None]
    existing = frozenset(file for file in named if file.is_file())
    write_text(path, _text(analysis, form, command_line(inputs, path)))
    written = [path]
    prints_json = json_path == STDOUT
    if prints_json:
        typer.echo(to_json(analysis), nl=False)
    elif json_path is not None:
        write_text(json_path, to_json(analysis))
        written.append(json_path)
    if not quiet:
        show_table(analysis, stderr=prints_json or path == STDOUT)
        say_where(
            analysis,
            [file for file in written if file != STDOUT],
            replaced=existing,
            form=form,
        )
    return analysis
