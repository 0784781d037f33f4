"""The first screen of replays alone, without a run recorded by a probe."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.findings.finding import Finding
from driftscope.analysis.first_screen.action import Action
from driftscope.analysis.first_screen.data import FEWEST_REQUESTS
from driftscope.analysis.first_screen.first_screen import FirstScreen, State
from driftscope.analysis.first_screen.key_figure import KeyFigure
from driftscope.analysis.first_screen.replay_sentences import replay_sentences, without_interval
from driftscope.analysis.first_screen.subject import actions_about, cause, state_of, subject_of
from driftscope.analysis.number_words import milliseconds, number
from driftscope.analysis.replays.replay_summary import NOT_RECORDED, Cell, ReplaySummary
from driftscope.analysis.statistics.intervals.cluster_ratio import FEW_REQUESTS
from driftscope.analysis.statistics.paired_ratios import Ratio
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.latency import CLIENT_TPOT
from driftscope.vocabulary import Ended

_RECORD = f"Send {FEW_REQUESTS} or more requests of different prompts."
_ROWS = "To conclude more, replay prompts with `driftscope replay`, or record requests one by one."


def replay_screen_of(replays: Sequence[ReplaySummary], findings: Sequence[Finding]) -> FirstScreen:
    """Return the first screen of replays, at least one; `findings` are ranked."""
    headline, few = replay_sentences(replays)[0], _answered(replays[0]) < FEWEST_REQUESTS
    subject = None if few else subject_of(findings)
    actions = actions_about(subject, findings, several=len(replays) > 1)
    few_words = _RECORD if replays[0].has_rows else _ROWS
    nothing = Action(sentence=few_words if few else "Nothing to change.")
    return FirstScreen(
        state=State.TOO_LITTLE if few else state_of(subject) or State.NOTHING_SEEN,
        headline=f"Too little to conclude. {headline}" if few else headline,
        claims=(),
        cause=cause(subject, several=len(replays) > 1),
        actions=actions if actions and not few else (nothing,),
        figures=_figures(replays),
    )


def _answered(replay: ReplaySummary) -> int:
    return replay.ended.get(Ended.ANSWERED, 0)


def _figures(replays: Sequence[ReplaySummary]) -> tuple[KeyFigure, ...]:
    """Return answers, tokens per round and time per token of the first replay's first condition,
    beside its condition that differs most."""
    first = replays[0]
    answers = _answers(first)
    if not first.cells:
        return (answers,)
    cell, *others = first.cells
    length = KeyFigure(
        value=number(cell.mean_length),
        unit="tokens per round",
        reference=_beside(cell, [(each, each.length_ratio) for each in others]),
        meaning=MEAN_LENGTH.meaning,
    )
    time = KeyFigure(
        value=milliseconds(cell.tpot_s),
        unit="per output token",
        reference=_beside(cell, [(each, each.tpot_ratio) for each in others]),
        meaning=CLIENT_TPOT.meaning,
    )
    return answers, length, time


def _answers(replay: ReplaySummary) -> KeyFigure:
    """Return the answers, or the rounds of a file that holds sums only."""
    if replay.planned is None:
        cell, rounds = replay.cells[0], replay.cells[0].rounds
        return KeyFigure(
            value=NOT_RECORDED if rounds is None else f"{rounds:,}",
            unit="rounds",
            reference=without_interval(cell) or f"in {cell.condition}",
            meaning="Rounds that the sums of the file cover; it holds no single requests.",
        )
    return KeyFigure(
        value=f"{_answered(replay):,}",
        unit="requests answered",
        reference=f"of {replay.planned:,} sent",
        meaning="Requests with a complete answer; the figures cover no others.",
    )


def _beside(cell: Cell, others: Sequence[tuple[Cell, Ratio | None]]) -> str:
    known = [(each, ratio) for each, ratio in others if ratio is not None]
    if not known:
        return f"in {cell.condition}"
    far, ratio = max(known, key=lambda each: abs(each[1].value - 1.0))
    return f"in {cell.condition}; {far.condition} {ratio.value:.2f}× that"
