"""Sentences on replays alone, without a run recorded by a probe."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import count, milliseconds, number
from driftscope.analysis.replays.file_totals import NO_INTERVAL
from driftscope.analysis.replays.replay_summary import Cell, ReplaySummary
from driftscope.vocabulary import Ended


def replay_sentences(runs: Sequence[ReplaySummary]) -> tuple[str, ...]:
    """Return one sentence per replay."""
    return tuple(f"{run.label} {_sender(run)}." for run in runs)


def _sender(run: ReplaySummary) -> str:
    if run.planned is None:
        return _sums(run)
    answered = run.ended.get(Ended.ANSWERED, 0)
    answered_words = f"answered {answered:,} of {count(run.planned, 'request')}"
    if not run.cells:
        return answered_words
    cell = run.cells[0]
    figures = _figures(cell)
    return (
        f"{answered_words}: {', '.join(figures)} in {cell.condition}" if figures else answered_words
    )


def _sums(run: ReplaySummary) -> str:
    """Return the figures of a file that holds sums only."""
    cell = run.cells[0]
    rounds = "" if cell.rounds is None else f" of {count(cell.rounds, 'round')}"
    figures = ", ".join(_figures(cell)) or "no acceptance length and no time per token"
    return f"holds sums{rounds}: {figures} in {cell.condition}{without_interval(cell, ' ({})')}"


def without_interval(cell: Cell, around: str = "{}") -> str:
    """Return that sums have no interval, or "" for a file that lists requests without rounds."""
    return "" if cell.mean_length_interval else around.format(NO_INTERVAL)


def _figures(cell: Cell) -> list[str]:
    figures = [f"{milliseconds(cell.tpot_s)} per token"] if cell.tpot_s is not None else []
    if cell.mean_length is not None:
        figures.insert(0, f"{number(cell.mean_length)} tokens per round")
    return figures
