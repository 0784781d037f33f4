"""The checks of `driftscope doctor` as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope_probes.server.doctor import Check

_MARKS = {True: ("ok", "green"), False: ("PROBLEM", "bold red"), None: ("", "")}


def print_checks(checks: Iterable[Check]) -> None:
    """Print to stdout, a hint under each problem."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        mark, style = _MARKS[check.ok]
        table.add_row(Text(mark, style), check.topic, Text(check.detail))
        if check.ok is False and check.hint:
            table.add_row("", "", Text(f"-> {check.hint}", "yellow"))
    Console().print(table)
