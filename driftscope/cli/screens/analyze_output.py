"""What `analyze` says: the table as data, everything else on stderr."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from driftscope.boundary.terminal_text import shown
from driftscope.pipeline import Analysis
from driftscope_reports.terminal.run_table import plain, render

_PIPE_WIDTH = 100
"""Columns when the output is no terminal."""
_RUN_WIDTH = 24
_REPLAY_WIDTH = 160


def command_line(
    runs: Sequence[Path], labels: Sequence[str], html: Path, baseline: Path | None = None
) -> str:
    """The command line that makes the same file again."""
    named = [part for label in labels for part in ("--label", label)]
    held = [] if baseline is None else ["--baseline", str(baseline)]
    return shlex.join(["driftscope", "analyze", *map(str, runs), *named, *held, "-o", str(html)])


def show_table(analysis: Analysis, *, stderr: bool = False) -> None:
    """The figures, on stdout unless that is taken."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        width = max(_PIPE_WIDTH, (len(analysis.runs) + 2) * _RUN_WIDTH)
        width = max(width, _REPLAY_WIDTH if analysis.senders else 0)
        console = Console(stderr=stderr, highlight=False, width=width)
    console.print(render(analysis))


def say_where(analysis: Analysis, written: Sequence[Path]) -> None:
    """Warnings, the files and what to do with them."""
    for warning in analysis.warnings:
        sys.stderr.write(f"warning: {plain(f'{warning.run}: {warning.message}')}\n")
    for path in written:
        sys.stderr.write(f"written: {shown(str(path))}\n")
    sys.stderr.write(f"next: open {shown(str(written[0]))} in a browser\n")
