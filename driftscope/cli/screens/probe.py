"""Output of `driftscope probe`: the processes of a running probe, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from driftscope.boundary.json_document import PROBE, text
from driftscope.boundary.text import output_console, shown
from driftscope.metrics.latency import all_in, cost_of

_COLUMNS = (
    "process",
    "state",
    "sampling",
    "rate",
    "budgeted",
    "requests",
    "draft rows",
    "dropped",
    "errors",
)
_ALL = {"-", "all"}
"""Cells of the column of requests that name no selection."""
_PIPE_WIDTH = 140
"""Width in columns when the output is not a terminal and COLUMNS is not set."""


def show(run: Path, processes: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the processes to stdout; problems go to stderr as well."""
    if as_json:
        content = {"run": str(run), "processes": processes}
        sys.stdout.write(text(PROBE, content, digits=None))
    else:
        console = output_console(_PIPE_WIDTH)
        console.print(_table(processes))
        console.print(f"probe cost: {_cost(processes)}", style="dim")
    for process in processes:
        if process.get("reason"):
            _warn(f"{process['source']}: {process['reason']}")
        if process.get("first_error"):
            _warn(f"{process['source']} caught errors; first: {process['first_error']}")
        if not process.get("answered", True) and not process["closed"]:
            _warn(f"{process['source']} did not apply the change: it may have been killed")


def _table(processes: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    columns = zip(_COLUMNS, *map(_cells, processes), strict=True)
    # Without a selection, 80 columns are enough.
    rows = [(name, *cells) for name, *cells in columns if name != "requests" or {*cells} - _ALL]
    for name, *_ in rows:
        table.add_column(name)
    for cells in list(zip(*rows, strict=True))[1:]:
        table.add_row(*(Text(shown(cell)) for cell in cells))
    return table


def _cost(processes: Sequence[Mapping[str, Any]]) -> str:
    """Return both costs of the probe, in the words of `driftscope.metrics.latency`."""
    costs = [
        cost_of(process["source"], *(float(process.get(name) or 0.0) for name in _TIMES))
        for process in processes
    ]
    shares = [share for p in processes if (share := p.get("overhead")) is not None]
    budgets = [c["budget"] for p in processes if (c := p.get("control") or {}).get("budget")]
    bound = f" of {_percent(budgets[0])}" if budgets else ""
    return (
        f"budgeted {_percent(max(shares, default=None))}{bound} (worker, recent steps); "
        f"all in {_percent(all_in(costs))} (all processes, since the start)"
    )


_TIMES = ("probe_s", "writer_s", "step_s")


def _cells(process: Mapping[str, Any]) -> tuple[str, ...]:
    control = process.get("control") or {}
    labels = control.get("labels")
    return (
        process["source"],
        _state(process),
        _sampling(control),
        _percent(process.get("rate")),
        _percent(process.get("overhead")),
        "-" if labels is None else ", ".join(labels) or "all",
        f"{process['rows'].get('draft', 0):,}",
        f"{sum(process['dropped'].values()):,}",
        f"{sum(process['errors'].values()):,}",
    )


def _state(process: Mapping[str, Any]) -> str:
    if process.get("down"):
        return "not recording"
    if process["closed"]:
        return "closed"
    return _word(process.get("recording"), "recording", "stopped", "running")


def _sampling(control: Mapping[str, Any]) -> str:
    if control.get("every"):
        return f"every {control['every']}"
    if control.get("budget"):
        return f"budget {_percent(control['budget'])}"
    return "-"


def _word(value: bool | None, true: str, false: str, none: str) -> str:
    return none if value is None else true if value else false


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def _warn(words: str) -> None:
    sys.stderr.write(f"warning: {shown(' '.join(words.split()))}\n")
