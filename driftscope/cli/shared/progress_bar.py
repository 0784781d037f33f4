"""A progress bar on stderr for interactive use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def steps(
    items: Iterable[T], what: str, *, total: int | None = None, quiet: bool = False
) -> Iterator[T]:
    """Yield `items` one by one, with a bar that disappears at the end; no bar without a
    terminal. `total` is their number if they have no length."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if quiet or not console.is_terminal:
        yield from items  # rich before 14.3 prints an empty line even where it shows no bar
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)
