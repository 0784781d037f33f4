"""A chart as a static SVG, visible before any script runs, without scripts, and on paper."""

from __future__ import annotations

from driftscope_reports.drawing.chart import Chart, Kind, is_number
from driftscope_reports.drawing.svg import axes, bars, lines
from driftscope_reports.drawing.svg.frame import LEFT, RIGHT, Frame, Paint, css, frame_of
from driftscope_reports.drawing.svg.legend import legend, named
from driftscope_reports.drawing.svg.patterns import patterns
from driftscope_reports.markup import Markup, el

__all__ = ["LEFT", "RIGHT", "legend", "named", "svg"]


def svg(chart: Chart, *, id: str, paint: Paint = css, title: str = "") -> Markup:  # noqa: A002
    """Return the SVG; `id` keeps its pattern ids distinct from those of other pictures in the
    page."""
    frame = frame_of(chart, paint, id)
    return el(
        "svg",
        el("title", title) if title else None,
        patterns(frame),
        axes.shade(frame),
        axes.grid(frame),
        _series(frame),
        axes.level(frame),
        axes.marks(frame),
        axes.titles(frame),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {chart.width} {chart.height}",
        font_family="system-ui, 'DejaVu Sans', sans-serif",
        font_size="13",
        role="img" if title else None,
        aria_hidden="true" if not title else None,
        focusable="false",
    )


def _series(frame: Frame) -> list[Markup]:
    out: list[Markup] = []
    labels: list[Markup] = []
    stacked: dict[float | str, float] = {}
    drawn = frame.chart.series
    bar_series = [s for s in drawn if s.kind is Kind.BAR]
    highest = max(
        (v for s in drawn if s.kind is Kind.CELLS for v in s.y if is_number(v)), default=1.0
    )
    for row, series in enumerate(drawn):
        match series.kind:
            case Kind.LINE | Kind.DASHED:
                out += lines.polyline(frame, series)
            case Kind.AREA:
                out += lines.area(frame, series, stacked, labels)
            case Kind.BAR:
                out += bars.bars(frame, series, bar_series.index(series), len(bar_series))
            case Kind.STACK:
                out += bars.stack(frame, series, stacked)
            case Kind.POINTS:
                out += lines.points(frame, series)
            case Kind.CELLS:
                out += bars.cells(frame, series, row, highest)
    return [*out, *labels]
