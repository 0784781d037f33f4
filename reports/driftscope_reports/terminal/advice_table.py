"""The advice on K as a table for the terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.analysis.cost.advice import NO_SPECULATION, Advice
from driftscope.analysis.cost.predict import WIDEST, Estimate
from driftscope.analysis.findings.dead_drafter import none_accepted
from driftscope.analysis.number_words import NOTHING, between_percent, milliseconds, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.json_report.advice import DEAD
from driftscope_reports.terminal.run_table import plain

_PIPE_WIDTH = 160
"""Width in columns when the output is not a terminal."""
_BATCHES_SHOWN = 12
"""Most rows of the table; more are thinned out, but the first and the last are always shown."""


def show(advice: Advice) -> None:
    """Print the setting to choose, the table and the assumptions to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    for line in _first(advice):
        console.print(Text(plain(line), style="bold"))
    console.print(_table(advice))
    if any(each.interval is None for at in advice.by_batch for each in at.tpot_s):
        console.print(f"{NOTHING}: open by more than a factor of {WIDEST:g}")
    for name, at in advice.by_context if advice.doubt is None else ():
        if at.gain.interval is None:
            console.print(f"contexts of {name}: the best K cannot be told")
        else:
            console.print(f"contexts of {name}: best K {at.best_k}, {_gain(at.gain)}")
    for said in advice.assumed:
        console.print(Text(f"assumed: {said}"))
    if advice.misfit:
        console.print(f"the model is off by {percent(advice.misfit)} of a step on average")


def _first(advice: Advice) -> tuple[str, ...]:
    """Return the setting to choose and its expected gain."""
    if advice.doubt is not None:
        said = f"{advice.run}: cannot tell which K is fastest: {advice.doubt}"
        return (said, _slower(advice)) if advice.surely_slower else (said,)
    if advice.useless:
        return f"{advice.run}: K = 0: {advice.command}", _why_none(advice)
    if advice.command is None:
        return (f"{advice.run}: keep {advice.served.words}{_not_better(advice)}",)
    if advice.command == advice.schedule_command:
        other = advice.served.words if advice.served.mixed else "the best single K"
        extra = f"{_gain(advice.schedule_gain)} than {other}"
    else:
        extra = f"{_gain(advice.overall.gain)} than {advice.served.words}"
    return f"{advice.run}: {advice.command}", extra


def show_dead(run: RunSummary) -> None:
    """Print the advice on a dead drafter of which too few steps are known for a table."""
    why = f"{none_accepted(run)}: {DEAD}"
    sys.stdout.write(f"{plain(run.label)}: K = 0: {NO_SPECULATION}\n{why[:1].upper()}{why[1:]}\n")


def _not_better(advice: Advice) -> str:
    """Return why the K that the model prefers to the one that ran is not advised."""
    best, gain = advice.overall.best_k, advice.overall.gain
    if not advice.served.mixed and best == advice.ran_k:
        return ""
    if gain.surely_above(0.0):
        return f": K = {best} would be {_gain(gain)}, too little for the model to be sure"
    how_much = f"{percent(gain.value)}{between_percent(gain.interval)}"
    return f": whether K = {best} is faster cannot be told, {how_much}; record a run with it"


def _slower(advice: Advice) -> str:
    return (
        f"until then {advice.command}: K = 0 is at least {percent(advice.least_gain)} faster than "
        f"K = {advice.ran_k}, since drafting takes more time than accepted tokens save"
    )


def _why_none(advice: Advice) -> str:
    said = "next to nothing is accepted: every K costs time and gives nothing"
    if advice.least_gain is None:
        return said
    return f"{said}; without the drafter it is at least {percent(advice.least_gain)} faster"


def _gain(gain: Estimate) -> str:
    if gain.interval is None:
        return "faster by how much cannot be told"
    return f"{percent(gain.value)} faster{between_percent(gain.interval)}"


def _table(advice: Advice) -> Table:
    title = "time per output token in ms by batch size and K, with 95% interval"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("batch", justify="right")
    for k in range(len(advice.overall.tpot_s)):
        table.add_column(f"K = {k}{' *' if k in advice.served.ks else ''}", justify="right")
    step = max(1, -(-len(advice.by_batch) // _BATCHES_SHOWN))
    shown = advice.by_batch[::step]
    if shown[-1] is not advice.by_batch[-1]:
        shown = (*shown, advice.by_batch[-1])
    for at in (*shown, advice.overall):
        best = None if advice.doubt else at.best_k
        cells = [_cell(e, best=k == best) for k, e in enumerate(at.tpot_s)]
        table.add_row(str(at.batch) if at.batch else "as served", *cells)
    return table


def _cell(time: Estimate, *, best: bool) -> Text:
    """Return a time with its interval, or a dash if the steps leave it open."""
    if time.interval is None:
        return Text(NOTHING)
    ends = f"[{1000 * time.interval.low:.1f}, {1000 * time.interval.high:.1f}]"
    value = milliseconds(time.value).removesuffix(" ms")
    return Text(f"{value} {ends}", style="bold green" if best else "")
