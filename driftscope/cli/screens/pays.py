"""The answer of `driftscope pays` on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.table import Table

from driftscope.analysis.number_words import milliseconds, number
from driftscope.analysis.speed import THROUGHPUT, TPOT, TTFT, WHOLE, Speed, SpeedAtLoad
from driftscope.boundary.text import output_console, shown
from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK
from driftscope.findings.catalogue import Analysis
from driftscope.findings.finding import Answer, Finding, Topic

_QUANTITIES = {
    TPOT: "time per token",
    WHOLE: "with the first one",
    TTFT: "time to first token",
    THROUGHPUT: "tokens per second",
}
_WIDTH = 100
_CODES = {Answer.YES: EXIT_OK, Answer.NO: EXIT_GATE_FAILED, Answer.CANNOT_TELL: EXIT_NO_DATA}


def pays_answers(analysis: Analysis) -> list[Finding]:
    """Return the answers to whether speculation pays, of each run or replay."""
    found = [*analysis.answers, *analysis.findings]
    about = [one for one in found if one.topic is Topic.PAYS and not one.reference]
    return [one for one in about if one.answer is not None]


def exit_code(analysis: Analysis) -> int:
    """Return 0 if speculation pays with some drafter, 3 if with none, 4 if that cannot be told."""
    answers = {finding.answer for finding in pays_answers(analysis)}
    best = next((one for one in reversed(Answer) if one in answers), Answer.CANNOT_TELL)
    return _CODES[best]


def say_answer(analysis: Analysis, url: str = "") -> None:
    """Print the answer, and the speeds at each load. `url` is that of a single running server,
    which is asked once with and once without its drafter."""
    console = output_console(_WIDTH)
    several = len(pays_answers(analysis)) > 1
    if url and {replay.speculates for replay in analysis.senders} != {True, False}:
        drafts = analysis.senders[0].speculates
        console.print(
            f"pays: cannot tell yet. The server with{'' if drafts else 'out'} speculation is "
            f"recorded: restart it with{'out' if drafts else ''} its drafter, and run the same "
            f"command again: driftscope pays {shlex.quote(url)}",
            highlight=False,
            soft_wrap=True,
        )
        return
    for finding in pays_answers(analysis):
        answer = finding.answer or Answer.CANNOT_TELL
        console.print(f"pays: {answer.value}. {finding.sentence(several)}", highlight=False)
        if answer is not Answer.YES and finding.advice:
            console.print(finding.advice, highlight=False, soft_wrap=True)
    valid = dict.fromkeys(one.validity.words for one in analysis.senders if one.speculates)
    for words in list(valid)[:1]:
        console.print(f"measurement: {words}.", highlight=False, soft_wrap=True)
    for replay in analysis.replay_cases:
        if replay.speeds:
            console.print()
            console.print(_table(replay.run.label, replay.speeds), highlight=False)


def _table(label: str, speeds: Sequence[SpeedAtLoad]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", title=shown(label))
    table.title_justify = "left"
    for name in ("load", "quantity", "clock"):
        table.add_column(name)
    for name in ("without", "with", "speed", "95% interval"):
        table.add_column(name, justify="right")
    for at_load in speeds:
        load = at_load.load
        for quantity, words in _QUANTITIES.items():
            for clock, by_quantity in (
                ("client", at_load.by_client),
                ("server", at_load.by_server),
            ):
                if (speed := by_quantity.get(quantity)) is not None:
                    table.add_row(load, words, clock, *_cells(speed, quantity))
                    load = ""
    return table


def _cells(speed: Speed, quantity: str) -> tuple[str, ...]:
    form = number if quantity == THROUGHPUT else milliseconds
    interval = speed.interval
    return (
        form(speed.other),
        form(speed.own),
        f"{speed.value:.2f}×",
        f"{interval.low:.2f}× to {interval.high:.2f}×",
    )
