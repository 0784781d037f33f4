"""The one picture of the first screen: acceptance by depth, or a replay's acceptance by
condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from driftscope.analysis.replays import ReplaySummary
from driftscope.findings.case import Case
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Mark, Series, Unit
from driftscope_reports.drawing.palette import PATTERNS, colour
from driftscope_reports.html.parts.run_series import by_run
from driftscope_reports.html.sections import acceptance
from driftscope_reports.model import Picture

_PIXELS = 560, 250
"""Width and height of the picture."""
_MOST_CONDITIONS = 12


def lead_picture(analysis: Analysis) -> Picture | None:
    """Return the picture; None for replays that answered nothing."""
    if analysis.runs:
        made: Picture | None = _by_depth(analysis)
    else:
        made = _by_condition(analysis.senders)
    width, height = _PIXELS
    return made and replace(made, chart=replace(made.chart, width=width, height=height))


def _by_depth(analysis: Analysis) -> Picture:
    picture, shade = acceptance.marginal(analysis.runs), _apart(analysis.cases)
    if shade is not None:
        picture = replace(picture, how=f"{picture.how} {_SHADED}")
    marks = _better_k(analysis.cases)
    return replace(picture, chart=replace(picture.chart, marks=marks, y_most=1.0, shade=shade))


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
    series = [s for i, replay in enumerate(replays) if (s := _bars(i, replay)).y]
    if not series:
        return None
    ends = [f"{min(known):.2f} to {max(known):.2f}" for s in series if (known := _known(s))]
    names = [replay.label for replay in replays]
    said = (
        by_run([], ends)
        if len(series) < 2
        else "; ".join(f"{name}: {each}" for name, each in zip(names, ends, strict=False))
    )
    return Picture(
        id="replay-length",
        title=f"Tokens per round by condition: {said}",
        how="One bar per condition of the replay, with its 95% interval. Conditions differ in "
        "their prompts, so compare a bar with the same condition of another replay.",
        chart=Chart(
            series=tuple(series),
            x_title="condition",
            y_title="tokens per round",
            axis=Axis.CATEGORY,
            unit=Unit.NUMBER,
        ),
        definitions=(MEAN_LENGTH,),
    )


def _known(series: Series) -> list[float]:
    return [y for y in series.y if y is not None]


def _bars(index: int, replay: ReplaySummary) -> Series:
    cells = list({cell.condition: cell for cell in reversed(replay.cells)}.values())
    cells = [cell for cell in reversed(cells) if cell.mean_length is not None][:_MOST_CONDITIONS]
    spreads = [cell.mean_length_interval for cell in cells]
    return Series(
        name=replay.label,
        kind=Kind.BAR,
        x=tuple(cell.condition for cell in cells),
        y=tuple(cell.mean_length for cell in cells),
        low=tuple(each.low if each else None for each in spreads),
        high=tuple(each.high if each else None for each in spreads),
        colour=colour(index),
        pattern=PATTERNS[index % len(PATTERNS)],
    )
