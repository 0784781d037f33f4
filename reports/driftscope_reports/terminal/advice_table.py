"""The advice on K as a table for the terminal."""

from __future__ import annotations

import sys

from rich.table import Table
from rich.text import Text

from driftscope.analysis.advice import NO_SPECULATION, Advice, answer, faster, to_measure
from driftscope.analysis.number_words import NOTHING, between_percent, milliseconds, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.time_per_token import WIDEST, Estimate
from driftscope.boundary.text import output_console, shown
from driftscope.findings.causes import none_accepted
from driftscope.json_report import DEAD

_PIPE_WIDTH = 160
"""Width in columns when the output is not a terminal and COLUMNS is not set."""
_BATCHES_SHOWN = 12
"""Most rows of the table; more are thinned out, but the first and the last are always shown."""


def show_advice(advice: Advice) -> None:
    """Print the setting to choose or the K to measure, the table, and what was not measured."""
    console = output_console(_PIPE_WIDTH)
    for line in _choice(advice):
        console.print(Text(shown(line), style="bold"))
    console.print(_advice_table(advice))
    if any(each.interval is None for at in advice.by_batch for each in at.tpot_s):
        console.print(f"{NOTHING}: uncertain by more than a factor of {WIDEST:g}")
    for name, at in advice.by_context if advice.doubt is None else ():
        if at.best_k in advice.measured_k and at.gain.surely_above(0.0):
            console.print(f"contexts of {name}: K = {at.best_k} is {_gain(at.gain)}")
    for warning in advice.warnings:
        console.print(Text(f"warning: {shown(warning)}"))
    for sentence in advice.assumed:
        console.print(Text(f"not measured: {sentence}"))
    console.print(
        f"runs of one server are taken to differ by {percent(advice.run_effect)}; verification "
        f"times are {percent(advice.misfit)} off a curve that never falls"
    )


def _choice(advice: Advice) -> tuple[str, ...]:
    """Return the setting to choose, its gain and what to measure."""
    head = f"{advice.run}: "
    if advice.useless:
        return f"{head}K = 0: {advice.command}", _why_none(advice)
    measure = to_measure(advice)
    further = () if measure is None else (measure, f"to do so: {advice.measure_command} OPTIONS")
    if advice.schedule_worth_it:
        other = advice.served.words if advice.served.mixed else "the best single K"
        extra = f"{_gain(advice.schedule_gain)} than {other}"
        return (f"{head}{advice.command}", extra, *further)
    if advice.worth_it:
        return (f"{head}{advice.command}", faster(advice), *further)
    slower = (_slower(advice),) if advice.surely_slower else ()
    words = answer(advice)
    return (f"{head}{words}", *slower, *(each for each in further if each != words))


def show_dead(run: RunSummary) -> None:
    """Print the advice on a dead drafter of which too few steps are known for a table."""
    why = f"{none_accepted(run)}: {DEAD}"
    sys.stdout.write(f"{shown(run.label)}: K = 0: {NO_SPECULATION}\n{why[:1].upper()}{why[1:]}\n")


def _slower(advice: Advice) -> str:
    return (
        f"until then {advice.command}: K = 0 is at least {percent(advice.least_gain)} faster than "
        f"K = {advice.ran_k}, because drafting takes more time than the accepted tokens save"
    )


def _why_none(advice: Advice) -> str:
    sentence = "next to nothing is accepted: every K costs time and gives nothing"
    if advice.least_gain is None:
        return sentence
    return f"{sentence}; without the drafter it is at least {percent(advice.least_gain)} faster"


def _gain(gain: Estimate) -> str:
    if gain.interval is None:
        return "faster, not known by how much"
    return f"{percent(gain.value)} faster{between_percent(gain.interval)}"


def _advice_table(advice: Advice) -> Table:
    title = (
        "time per output token in ms by batch size and K: measured with 95% interval (*), "
        "otherwise a guess between bounds"
    )
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("batch", justify="right")
    for k in range(len(advice.overall.tpot_s)):
        table.add_column(f"K = {k}{' *' if k in advice.measured_k else ''}", justify="right")
    step = max(1, -(-len(advice.by_batch) // _BATCHES_SHOWN))
    batches = advice.by_batch[::step]
    if batches[-1] is not advice.by_batch[-1]:
        batches = (*batches, advice.by_batch[-1])
    for at in (*batches, advice.overall):
        best = at.best_k if advice.doubt is None and at.best_k in advice.measured_k else None
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
