"""The checks of `driftscope doctor` as a table below the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope_probes.server.doctor import VERDICT, Check

_MARKS = {True: ("ok", "green"), False: ("PROBLEM", "bold red"), None: ("", "")}
_HOOK = "hook "
"""Beginning of the topic of one hook: those that work are counted, not listed."""


def print_checks(checks: Iterable[Check]) -> None:
    """Print the verdict and the checks to stdout, with a hint under each problem."""
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        mark, style = _MARKS[check.ok]
        if check.topic == VERDICT:
            console.print(Text(check.detail, style), soft_wrap=True)
            if check.hint and check.ok is False:
                console.print(Text(f"-> {check.hint}", "yellow"), soft_wrap=True)
            continue
        if check.topic.startswith(_HOOK) and check.ok:
            continue
        table.add_row(Text(mark, style), check.topic, Text(check.detail))
        if check.ok is False and check.hint:
            table.add_row("", "", Text(f"-> {check.hint}", "yellow"))
    console.print(table)
