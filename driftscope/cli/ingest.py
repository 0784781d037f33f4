"""The `driftscope ingest` command."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.boundary.text import output_console, shown

if TYPE_CHECKING:
    from driftscope.ingest.base import Figures, Reader

_UNKNOWN = "–"
_WIDTH = 76


def ingest(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Result files of other engines and tools; - reads a pipe."
        ),
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

    Lengths count the target's own token of each round, rates are over the rounds that
    verified the depth. What a
    reader took for granted is printed with its figures, and so are figures of one file that do not
    fit together. What a file does not hold is a dash.
    """
    from driftscope.errors import UsageError
    from driftscope.ingest.base import STDIN
    from driftscope.ingest.catalogue import READERS, to_json
    from driftscope.ingest.catalogue import ingest as read

    if formats:
        _print_formats(READERS.values())
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
        from driftscope.analysis.number_words import count
        from driftscope.ingest.run_directory import write_run

        requests, sums = write_run(output, *found[0])
        held = [f"{requests:,} requests"] if requests else []
        held += [f"sums of {count(sums, 'part')}"] if sums else []
        name = shown(shlex.quote(str(output)))
        sys.stderr.write(f"written: {name}, {', '.join(held)}\nnext: driftscope analyze {name}\n")
    if as_json:
        typer.echo(to_json(found), nl=False)
        return
    _print_figures(found)
    if output is None and len(files) == 1 and files != [STDIN]:
        file, run = (shown(shlex.quote(name)) for name in (f"{files[0]}", f"{files[0].stem}-run"))
        sys.stderr.write(f"next: driftscope ingest {file} -o {run} && driftscope analyze {run}\n")


MOST_PARTS = 100
"""Parts of a file that are printed, such as replicas of a log, the worst first."""


def _print_figures(found: Sequence[tuple[Path, Reader, tuple[Figures, ...]]]) -> None:
    """Print figures side by side to stdout, and below them what was assumed."""
    from rich.table import Table
    from rich.text import Text

    console = output_console(80)
    table = Table(box=None, pad_edge=False)
    names = ("K", "rounds", "length", "95% interval", "accepted by depth", "TTFT ms", "TPOT ms")
    for name in ("file", *names):
        table.add_column(name, justify="left" if name == "file" else "right", overflow="fold")
    for path, _, every in found:
        for figures in every[:MOST_PARTS]:
            table.add_row(Text(_name(path, figures)), *_cells(figures))
    console.print(table)
    if words := _to_one_depth(found):
        console.print(Text(words, "bold yellow"))
    for path, reader, every in found:
        console.print(Text(f"{shown(path.name)}: {reader.title}", "bold"))
        if len(every) > MOST_PARTS:
            words = f"{len(every) - MOST_PARTS:,} more parts are not shown; --json has all"
            console.print(Text(f"  {words}", "bold yellow"))
        every = every[:MOST_PARTS]
        notes = [dict.fromkeys(_notes(figures)) for figures in every]
        for figures, file_notes in zip(every, notes, strict=True):
            for words, style in file_notes:
                shared = len(every) > 1 and all((words, style) in other for other in notes)
                if not shared:
                    part = f"{shown(figures.part)}: " if figures.part else ""
                    console.print(Text(f"  {part}{words}", style))
                elif figures is every[0]:
                    console.print(Text(f"  {words}", style))


def _to_one_depth(found: Sequence[tuple[Path, Reader, tuple[Figures, ...]]]) -> str | None:
    """Return the acceptance lengths to the depth that all reach, in words; None if all of them are
    of one number of draft tokens."""
    rates = {
        _name(path, figures): [rate for rate in figures.marginal if rate is not None]
        for path, _, every in found
        for figures in every[:MOST_PARTS]
        if figures.mean_length is not None and figures.marginal
    }
    depths = {len(by_depth) for by_depth in rates.values()}
    if len(depths) < 2:
        return None
    depth = min(depths)
    lengths = (f"{name} {1 + sum(rate[:depth]):.2f}" for name, rate in rates.items())
    return (
        "lengths of different numbers of draft tokens do not compare; to depth "
        f"{depth} they are {', '.join(lengths)}"
    )


def _print_formats(readers: Iterable[Reader]) -> None:
    """Print every format to stdout."""
    for reader in readers:
        words = f"gives {reader.gives}; lacks {reader.lacks}"
        indented = textwrap.indent(textwrap.fill(words, _WIDTH), "    ")
        typer.echo(f"{reader.name}: {reader.title}\n{indented}")


def _notes(figures: Figures) -> Iterator[tuple[str, str]]:
    """Yield the contradictions, observations and assumptions of one part of a file, each with its
    style."""
    from driftscope.analysis.validity import content_of
    from driftscope.ingest.base import THIS_RUN

    for words in content_of(figures.prompts, figures.ignores_stop)[0]:
        yield f"not content-valid: {words}", "bold yellow"
    for words in figures.contradictions:
        yield f"does not fit together: {shown(words)}", "bold red"
    for words in (*figures.observations, *(change.statement for change in figures.changes)):
        yield shown(words), "bold yellow"
    if figures.mean_length is None and (rate := figures.token_rate) is not None:
        counts = f"{figures.accepted:,} of {figures.verified:,}"
        yield f"{100 * rate:.1f}% of the draft tokens were accepted ({counts})", ""
    for words in figures.assumptions:
        yield shown(words), "dim"
    if figures.period != THIS_RUN:
        yield f"acceptance covers: {figures.period}", "yellow"
    if figures.mean_length is not None and figures.mean_length_interval is None:
        yield "no interval: the file has sums only", "dim"


def _name(path: Path, figures: Figures) -> str:
    return shown(f"{path.name} {figures.part}".strip())


def _cells(figures: Figures) -> tuple[str, ...]:
    spread = figures.mean_length_interval
    ends = _UNKNOWN if spread is None else f"{spread.low:.2f} to {spread.high:.2f}"
    rates = [_UNKNOWN if rate is None else f"{rate:.2f}" for rate in figures.marginal or ()]
    return (
        _UNKNOWN if figures.k is None else str(figures.k),
        _UNKNOWN if figures.rounds is None else f"{figures.rounds:,}",
        _UNKNOWN if figures.mean_length is None else f"{figures.mean_length:.2f}",
        ends,
        " ".join(rates) or _UNKNOWN,
        _ms(figures.ttft_s),
        _ms(figures.tpot_s),
    )


def _ms(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else f"{1000 * seconds:.1f}"
