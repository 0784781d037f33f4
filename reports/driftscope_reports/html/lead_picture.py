"""The one picture of the first screen: acceptance by depth, or a replay's acceptance by
condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from driftscope.analysis.replays import ReplaySummary
from driftscope.findings.case import Case
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.pipeline import Analysis
from driftscope_reports.charts import Axis, Mark, bars, figure
from driftscope_reports.model import Picture
from driftscope_reports.sections_inside import marginal_acceptance

_MOST_CONDITIONS = 12


def lead_picture(analysis: Analysis) -> Picture | None:
    """Return the picture; None for replays that answered nothing."""
    return _by_depth(analysis) if analysis.runs else _by_condition(analysis.senders)


def _by_depth(analysis: Analysis) -> Picture:
    shade, marks = _apart(analysis.cases), _better_k(analysis.cases)
    picture = marginal_acceptance(analysis.runs, marks=marks, y_most=1.0, shade=shade)
    return picture if shade is None else replace(picture, how=f"{picture.how} {_SHADED}")


_SHADED = "Depths at which the two runs differ are shaded."


def _apart(cases: Sequence[Case]) -> tuple[float, float] | None:
    """Return the first and the last depth at which two runs differ by `driftscope compare`, with
    half a depth around them; None if they differ at every depth or at none, and if there
    are not two runs."""
    compared = [case.comparison for case in cases if case.comparison is not None]
    if len(cases) != 2 or not compared:
        return None
    depths = compared[0].apart_at
    if not depths or len(depths) == max(case.run.k for case in cases):
        return None
    return min(depths) - 0.5, max(depths) + 0.5


def _better_k(cases: Sequence[Case]) -> tuple[Mark, ...]:
    """Return a line at each K that surely serves faster than the one that ran."""
    known = [
        (case.run.label, case.advice.overall.best_k)
        for case in cases
        if case.advice and case.advice.worth_it and not case.advice.useless
    ]
    several = len(cases) > 1
    return tuple(
        Mark(x=k, text=f"K = {k} is faster{f' ({label})' if several else ''}")
        for label, k in known
        if k > 0
    )


def _by_condition(replays: Sequence[ReplaySummary]) -> Picture | None:
    drawn = [trace for i, replay in enumerate(replays) if (trace := _bars(i, replay)).y]
    if not drawn:
        return None
    ends = [f"{min(trace.y):.2f} to {max(trace.y):.2f}" for trace in drawn]
    named = [f"{trace.name}: {words}" for trace, words in zip(drawn, ends, strict=True)]
    return Picture(
        id="replay-length",
        title=f"Tokens per round by condition: {'; '.join(named) if len(drawn) > 1 else ends[0]}",
        how="One bar per condition of the replay, with its 95% interval. Conditions differ in "
        "their prompts, so compare a bar with the same condition of another replay.",
        chart=figure(drawn, x_title="condition", y_title="tokens per round", axis=Axis.CATEGORY),
        definitions=(MEAN_LENGTH,),
    )


def _bars(index: int, replay: ReplaySummary) -> Any:
    cells = list({cell.condition: cell for cell in reversed(replay.cells)}.values())
    cells = [cell for cell in reversed(cells) if cell.mean_length is not None][:_MOST_CONDITIONS]
    return bars(
        replay.label,
        [cell.condition for cell in cells],
        [cell.mean_length for cell in cells],
        run=index,
        intervals=[cell.mean_length_interval for cell in cells],
    )
