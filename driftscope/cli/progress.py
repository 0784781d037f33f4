"""A progress bar on stderr, for a person who waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def steps(items: Sequence[T], what: str, *, quiet: bool = False) -> Iterator[T]:
    """`items` one by one, with a bar that is gone in the end; none without a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task(what, total=len(items))
        for item in items:
            yield item
            progress.advance(task)
