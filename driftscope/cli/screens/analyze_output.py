"""Output of `analyze`: the table on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from pathlib import Path

from driftscope.boundary.text import output_console, shown
from driftscope.cli.shared.report_format import Format
from driftscope.pipeline import Analysis
from driftscope_reports.terminal.run_table import plain, render

_PIPE_WIDTH = 100
"""Width in columns when the output is not a terminal and COLUMNS is not set."""
_RUN_WIDTH = 24
_REPLAY_WIDTH = 160


def show_table(analysis: Analysis, *, stderr: bool = False) -> None:
    """Print the figures to stdout, or to stderr if stdout is used for JSON."""
    width = max(_PIPE_WIDTH, (len(analysis.runs) + 2) * _RUN_WIDTH)
    width = max(width, _REPLAY_WIDTH if analysis.senders else 0)
    output_console(width, stderr=stderr).print(render(analysis))


def say_where(
    analysis: Analysis,
    written: Sequence[Path],
    *,
    replaced: Container[Path] = (),
    form: Format = Format.HTML,
) -> None:
    """Print the warnings, the files written, which of them replaced a file, and what to do next."""
    for warning in analysis.warnings:
        sys.stderr.write(f"warning: {plain(f'{warning.run}: {warning.message}')}\n")
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
