"""Implementation of `driftscope compare` for an inspection and a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.analysis.query.query_engine import Engine
from driftscope.boundary.terminal_text import shown
from driftscope.cli.inspection.like_rounds import runs_like
from driftscope.errors import NoDataError
from driftscope.inspect.promise import (
    PromiseComparison,
    PromiseDifference,
    compare_with_promise,
    read_promise,
    to_json,
)
from driftscope.pipeline import Inputs


def compare_with_inspection(
    document: Path,
    run: Path,
    label: str,
    *,
    engine: Callable[[], Engine],
    cluster: str | None,
    as_json: bool,
) -> None:
    """Print how a run's acceptance differs from that of an inspection.

    Raises UsageError for a document that is no inspection, and MixedTraceError for a run that did
    not draft its K.
    """
    promise = read_promise(document)
    inputs = Inputs(sources=[run], labels=[label], engine=engine, cluster=cluster)
    runs, notes = runs_like(promise, inputs)
    if not runs:
        raise NoDataError(f"{run}: is no run of a probe; record one to compare its acceptance")
    comparison = compare_with_promise(promise, runs[0], notes)
    if as_json:
        typer.echo(to_json(comparison), nl=False)
    else:
        _show(comparison)


def _show(comparison: PromiseComparison) -> None:
    console = Console(highlight=False)
    console.print(Text(f"{shown(comparison.verdict)}."))
    for note in comparison.notes:
        console.print(Text(f"Note: {shown(note)}."))
    table = Table("", "inspection", "run", "difference", "95% interval", box=None, pad_edge=False)
    for each in comparison.differences:
        table.add_row(*_cells(each))
    console.print(table)


def _cells(each: PromiseDifference) -> tuple[str, ...]:
    name = "acceptance length" if each.depth is None else f"accepted to depth {each.depth}"
    ends = f"{each.interval.low:+.3f} to {each.interval.high:+.3f}" if each.interval else "–"
    figures = f"{each.promised:.3f}", f"{each.served:.3f}", f"{each.difference:+.3f}"
    return name, *figures, ends
