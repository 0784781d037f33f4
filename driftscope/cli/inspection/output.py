"""The output of `driftscope inspect`: a table, a JSON document, an HTML page."""

from __future__ import annotations

from pathlib import Path

import typer

from driftscope.boundary.terminal_text import shown
from driftscope.cli.screens.inspect_table import print_inspection
from driftscope.cli.screens.pair_table import print_pair
from driftscope.inspect.inspection import Inspection
from driftscope.inspect.inspection_json import pair_to_json, to_json
from driftscope.inspect.pair_inspection import PairInspection


def print_result(result: Inspection | PairInspection, *, strict: bool, as_json: bool) -> None:
    """Print an inspection of one checkpoint or of two to stdout."""
    if as_json:
        typer.echo(_document(result, strict=strict), nl=False)
    elif isinstance(result, PairInspection):
        print_pair(result)
    else:
        print_inspection(result)


def write_page(result: Inspection | PairInspection, path: Path, command: str) -> None:
    """Write the HTML page, and print its place to stderr. Raises OSError."""
    from driftscope_reports.html.inspection.page import to_html
    from driftscope_reports.report_files import write_text

    write_text(path, to_html(result, command=command))
    typer.echo(f"written: {shown(str(path))}", err=True)


def _document(result: Inspection | PairInspection, *, strict: bool) -> str:
    code = result.exit_code(strict=strict)
    if isinstance(result, PairInspection):
        return pair_to_json(result, code, strict=strict)
    return to_json(result, code)
