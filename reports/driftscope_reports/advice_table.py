"""The advice on K as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.analysis.cost.advice import Advice
from driftscope.analysis.cost.predict import Estimate, Prediction
from driftscope.analysis.words import milliseconds, percent
from driftscope_reports.terminal import plain

_PIPE_WIDTH = 160
"""Columns when the output is no terminal."""
_BATCHES_SHOWN = 12
"""Rows of the table; more are thinned out, the first and the last always there."""


def show(advice: Advice) -> None:
    """What to set, then the table, then what was assumed; to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    for line in _first(advice):
        console.print(Text(plain(line), style="bold"))
    console.print(_table(advice))
    for name, at in advice.by_context:
        console.print(f"contexts of {name}: best K {at.best_k}, {_gain(at.gain)}")
    for said in advice.assumed:
        console.print(Text(f"assumed: {said}"))
    if advice.misfit:
        console.print(f"the model is off by {percent(advice.misfit)} of a step on average")


def to_json(advice: Advice) -> str:
    """Everything, newline at the end."""
    content = asdict(advice)
    content["command"] = advice.command
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _first(advice: Advice) -> tuple[str, ...]:
    """What to set, and what it is expected to gain."""
    if advice.command is None:
        best, gain = advice.overall.best_k, advice.overall.gain
        better = "" if best == advice.ran_k else f"; K = {best} is estimated to be {_gain(gain)}"
        return (f"{advice.run}: keep K = {advice.ran_k}{better}",)
    if advice.command == advice.schedule_command:
        extra = f"{_gain(advice.schedule_gain)} than the best single K"
    else:
        extra = f"{_gain(advice.overall.gain)} than K = {advice.ran_k}"
    return f"{advice.run}: {advice.command}", extra


def _gain(gain: Estimate) -> str:
    low, high = percent(gain.interval.low), percent(gain.interval.high)
    return f"{percent(gain.value)} faster (95% interval {low} to {high})"


def _table(advice: Advice) -> Table:
    title = "time per output token in ms by batch size and K, with 95% interval"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("batch", justify="right")
    for k in range(len(advice.overall.tpot_s)):
        table.add_column(f"K = {k}{' *' if k == advice.ran_k else ''}", justify="right")
    step = max(1, -(-len(advice.by_batch) // _BATCHES_SHOWN))
    shown = advice.by_batch[::step]
    if shown[-1] is not advice.by_batch[-1]:
        shown = (*shown, advice.by_batch[-1])
    for at in (*shown, advice.overall):
        table.add_row(str(at.batch) if at.batch else "as served", *_cells(at))
    return table


def _cells(at: Prediction) -> list[Text]:
    return [
        Text(
            f"{milliseconds(e.value).removesuffix(' ms')} "
            f"[{1000 * e.interval.low:.1f}, {1000 * e.interval.high:.1f}]",
            style="bold green" if k == at.best_k else "",
        )
        for k, e in enumerate(at.tpot_s)
    ]
