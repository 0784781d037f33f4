"""Figures from other tools' files, and the formats, on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.analysis.number_words import count
from driftscope.analysis.replays import NO_INTERVAL
from driftscope.boundary.text import shown
from driftscope.ingest.base import THIS_RUN, Figures, Reader

_UNKNOWN = "–"
Read = Sequence[tuple[Path, Reader, tuple[Figures, ...]]]
"""Files, the reader of each, and its figures."""


def print_figures(found: Read) -> None:
    """Print figures side by side to stdout, and below them what was assumed."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    names = ("K", "rounds", "length", "95% interval", "accepted by depth", "TTFT ms", "TPOT ms")
    for name in ("file", *names):
        table.add_column(name, justify="left" if name == "file" else "right", overflow="fold")
    for path, _, every in found:
        for figures in every:
            table.add_row(Text(_name(path, figures)), *_cells(figures))
    console.print(table)
    for path, reader, every in found:
        console.print(Text(f"{shown(path.name)}: {reader.title}", "bold"))
        for figures in every:
            _print_notes(console, figures)


def write_to(run: Path, path: Path, reader: Reader, found: tuple[Figures, ...]) -> None:
    """Write the requests of a file as a run, and say on stderr what to run next. Raises what
    `write_run` raises."""
    from driftscope.ingest.run_directory import write_run

    written = write_run(run, path, reader, found)
    held = [f"{written.requests:,} requests"] if written.requests else []
    held += [f"sums of {count(written.sums, 'part')} ({NO_INTERVAL})"] if written.sums else []
    name = shown(str(run))
    sys.stderr.write(f"written: {name}, {', '.join(held)}\nnext: driftscope analyze {name}\n")


def print_formats(readers: Iterable[Reader]) -> None:
    """Print every format to stdout."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("format", "file", "gives", "lacks"):
        table.add_column(name, overflow="fold")
    for each in readers:
        table.add_row(each.name, each.title, each.gives, each.lacks)
    console.print(table)


def _print_notes(console: Console, figures: Figures) -> None:
    part = f"{shown(figures.part)}: " if figures.part else ""
    for words in figures.contradictions:
        console.print(Text(f"  {part}does not fit together: {shown(words)}", "bold red"))
    for words in figures.assumptions:
        console.print(Text(f"  {part}{shown(words)}", "dim"))
    if figures.period != THIS_RUN:
        console.print(Text(f"  {part}acceptance covers: {figures.period}", "yellow"))
    if figures.length is not None and figures.length_interval is None:
        console.print(Text(f"  {part}no interval: the file has sums only", "dim"))


def _name(path: Path, figures: Figures) -> str:
    return shown(f"{path.name} {figures.part}".strip())


def _cells(figures: Figures) -> tuple[str, ...]:
    spread = figures.length_interval
    ends = _UNKNOWN if spread is None else f"{spread.low:.2f} to {spread.high:.2f}"
    rates = " ".join(f"{rate:.2f}" for rate in figures.marginal or ()) or _UNKNOWN
    return (
        _UNKNOWN if figures.k is None else str(figures.k),
        _UNKNOWN if figures.rounds is None else f"{figures.rounds:,}",
        _UNKNOWN if figures.length is None else f"{figures.length:.2f}",
        ends,
        rates,
        _ms(figures.ttft_s),
        _ms(figures.tpot_s),
    )


def _ms(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else f"{1000 * seconds:.1f}"
