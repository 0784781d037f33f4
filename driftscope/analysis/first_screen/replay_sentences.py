"""Sentences on replays alone, without a run recorded by a probe."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import count, milliseconds, number
from driftscope.analysis.replays.senders import ReplaySummary
from driftscope.vocabulary import Ended


def replay_sentences(runs: Sequence[ReplaySummary]) -> tuple[str, ...]:
    """Return one sentence per replay."""
    return tuple(f"{run.label} {_sender(run)}." for run in runs)


def _sender(run: ReplaySummary) -> str:
    answered = run.ended.get(Ended.ANSWERED, 0)
    answered_words = f"answered {answered:,} of {count(run.planned, 'request')}"
    if not run.cells:
        return answered_words
    cell = run.cells[0]
    figures = [f"{milliseconds(cell.tpot_s)} per token"] if cell.tpot_s is not None else []
    if cell.mean_length is not None:
        figures.insert(0, f"{number(cell.mean_length)} tokens per round")
    return (
        f"{answered_words}: {', '.join(figures)} in {cell.condition}" if figures else answered_words
    )
