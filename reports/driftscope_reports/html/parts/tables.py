"""HTML tables of the report."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope_reports.drawing.chart import Axis, Chart, Series, Unit
from driftscope_reports.drawing.palette import format_value
from driftscope_reports.markup import Child, Markup
from driftscope_reports.page import part

MAX_COLUMNS = 20
"""Most values of x that are columns; with more, they are rows."""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Child]],
    *,
    words: int = 1,
    caption: str,
    sortable: bool = False,
    id: str | None = None,  # noqa: A002
    by_depth: bool = False,
) -> Markup:
    """Return a table whose first `words` columns are text and the rest numbers; it scrolls if
    wide."""
    return part(
        "table",
        head,
        rows,
        words=words,
        caption=caption,
        sortable=sortable,
        id=id,
        by_depth=by_depth,
    )


def by_run_table(
    head: Sequence[str], rows: Sequence[Sequence[Child]], *, words: int, caption: str, runs: int
) -> Markup:
    """Return a sortable table whose first column is the run; the column is omitted for a single
    run."""
    if runs < 2:
        head, rows, words = head[1:], [row[1:] for row in rows], words - 1
    return table(head, rows, words=words, caption=caption, sortable=True)


def of_chart(chart: Chart, title: str) -> Markup:
    """Return the numbers of a picture as a table."""
    series = [s for s in chart.series if s.tabled]
    if chart.axis is not Axis.DEPTH and (
        max((len(s.x) for s in series), default=0) > MAX_COLUMNS or not _same_x(series)
    ):
        return _long(chart, series, title)
    xs = max((s.x for s in series), key=len, default=())
    names = [f"{chart.x_title} {x}" if chart.axis is Axis.DEPTH else _x_words(x) for x in xs]
    rows = [row for s in series for row in _rows(s, len(xs), chart.unit)]
    by_depth = chart.axis is Axis.DEPTH
    return table(["", *names], rows, caption=f"Numbers of: {title}", by_depth=by_depth)


def _same_x(series: Sequence[Series]) -> bool:
    return len({s.x for s in series}) <= 1


def _rows(s: Series, columns: int, unit: Unit) -> list[list[Child]]:
    gap = ["–"] * (columns - len(s.x))
    out: list[list[Child]] = [[s.name, *(format_value(y, unit) for y in s.y), *gap]]
    if s.low:
        ends = [
            "–"
            if low is None or high is None
            else f"{format_value(low, unit)} to {format_value(high, unit)}"
            for low, high in zip(s.low, s.high, strict=True)
        ]
        out.append([f"{s.name}, 95% interval", *ends, *gap])
    return out


def _long(chart: Chart, series: Sequence[Series], title: str) -> Markup:
    """Return one row per x if the series share their x values, else one row per value."""
    if _same_x(series) and not any(s.notes for s in series):
        rows: list[list[Child]] = [
            [_x_words(x), *(format_value(s.y[i], chart.unit) for s in series)]
            for i, x in enumerate(series[0].x)
            if any(s.y[i] for s in series)
        ]
        head = [chart.x_title, *(s.name for s in series)]
        return table(head, rows, caption=f"Numbers of: {title}")
    rows = [
        [s.name, s.notes[i] if s.notes else "", _x_words(x), format_value(y, chart.unit)]
        for s in series
        for i, (x, y) in enumerate(zip(s.x, s.y, strict=True))
    ]
    head = ["run", "about", chart.x_title, chart.y_title]
    return table(head, rows, words=2, caption=f"Numbers of: {title}")


def _x_words(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:.5g}"
