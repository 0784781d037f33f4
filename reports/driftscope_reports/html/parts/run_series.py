"""Series of several runs in one picture."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import listed
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.trace.manifest import BY_DEPTH
from driftscope_reports.drawing.chart import Chart, Kind, Series, Unit, Values, depths
from driftscope_reports.drawing.palette import colour


def line(
    index: int,
    label: str,
    values: Values,
    spread: Sequence[Interval | None] | None = None,
    style: int | None = None,
) -> Series:
    """Return the line of the run with this index, by depth."""
    known = list(spread) if spread is not None else []
    return Series(
        name=label,
        kind=Kind.LINE,
        x=depths(values),
        y=tuple(values),
        colour=colour(index),
        style=index if style is None else style,
        low=tuple(None if at is None else at.low for at in known),
        high=tuple(None if at is None else at.high for at in known),
    )


def by_run(runs: Sequence[RunSummary], parts: Sequence[str]) -> str:
    """Return one part per run: "72% (old) and 83% (new)"; without the name of a single run."""
    if len(runs) < 2:
        return "".join(parts)
    return listed([f"{part} ({run.label})" for part, run in zip(parts, runs, strict=True)])


def at_depths(runs: Sequence[RunSummary], depth_figures: Sequence[tuple[int, str]]) -> str:
    """Return a depth and a figure per run: "6: 57% (old) and 76% (new)", or a depth for each
    run."""
    if len({depth for depth, _ in depth_figures}) == 1:
        return f"{depth_figures[0][0]}: {by_run(runs, [figure for _, figure in depth_figures])}"
    return by_run(runs, [f"{depth}: {figure}" for depth, figure in depth_figures])


def about(run: RunSummary, runs: Sequence[RunSummary], words: str) -> str:
    """Return the start of a title, `words` after the run's name if there are several runs."""
    return f"{run.label}: {words}" if len(runs) > 1 else f"{words[:1].upper()}{words[1:]}"


def axis_name(runs: Sequence[RunSummary]) -> str:
    """Return the name of the x axis: block drafters have no depth."""
    kinds = dict.fromkeys(run.manifest.query_kind for run in runs)
    return " or ".join(kinds) if kinds else BY_DEPTH


def depth_chart(
    runs: Sequence[RunSummary],
    series: Sequence[Series],
    y_title: str,
    unit: Unit = Unit.NUMBER,
    level: float | None = None,
) -> Chart:
    """Return a chart over depth."""
    return Chart(
        series=tuple(series), x_title=axis_name(runs), y_title=y_title, unit=unit, level=level
    )
