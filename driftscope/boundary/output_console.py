"""Console of what a command prints, as wide as its reader wants it."""

from __future__ import annotations

import os

from rich.console import Console


def output_console(width: int, *, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal or as COLUMNS says, otherwise `width` columns."""
    console = Console(stderr=stderr, highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(stderr=stderr, highlight=False, width=width)
