"""Lines, points and stacked areas."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope_reports.drawing.chart import MARKED, Kind, Series, is_number
from driftscope_reports.drawing.palette import DASH_ARRAYS, MARKER_PATHS
from driftscope_reports.drawing.svg.frame import Frame, text
from driftscope_reports.drawing.svg.patterns import filled
from driftscope_reports.markup import Markup, el

_LABEL_FROM = 0.07
"""Smallest height of an area, as a share of the picture, at which it carries its name."""
_CAPS = {0: "round", 1: "square"}


def polyline(frame: Frame, series: Series) -> list[Markup]:
    """Return a line with its intervals and, if points are few, markers."""
    expected, colour = series.kind is Kind.DASHED, frame.paint(series.colour)
    dash = "6 4" if expected else DASH_ARRAYS[series.style % len(DASH_ARRAYS)]
    width = "2" if expected else "2.5"
    out = [
        el(
            "path",
            d=_path(frame, series),
            fill="none",
            stroke=colour,
            stroke_width=width,
            stroke_dasharray=dash or None,
            stroke_linejoin="round",
        )
    ]
    if series.low:
        out += whiskers(frame, series, colour)
    marked = series.marked and series.kind is Kind.LINE and len(series.x) <= MARKED
    return [*out, *(_markers(frame, series) if marked else [])]


def _path(frame: Frame, series: Series) -> str:
    parts, pen = [], "M"
    for x, y in zip(series.x, series.y, strict=True):
        if not is_number(y):
            pen = "M"
            continue
        parts.append(f"{pen}{frame.x(x):.1f} {frame.y(y):.1f}")
        pen = "L"
    return "".join(parts)


def whiskers(frame: Frame, series: Series, colour: str) -> list[Markup]:
    """Return the 95% intervals as vertical strokes."""
    parts = [
        f"M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
        for x, low, high in zip(series.x, series.low, series.high, strict=True)
        if is_number(low) and is_number(high)
    ]
    return [el("path", d="".join(parts), stroke=colour, stroke_width="1.2", fill="none")]


def _markers(frame: Frame, series: Series) -> list[Markup]:
    shape = MARKER_PATHS[series.style % len(MARKER_PATHS)]
    spots = [
        f"M{frame.x(x):.1f} {frame.y(y):.1f}{shape}"
        for x, y in zip(series.x, series.y, strict=True)
        if is_number(y)
    ]
    return [el("path", d="".join(spots), fill=frame.paint(series.colour))]


def points(frame: Frame, series: Series) -> list[Markup]:
    """Return points as line ends without length, round or square, in a tenth of the bytes that
    markers take. Square ones have a length of 0.1, because in print Chromium draws no square at the
    end of a line of length 0."""
    cap = _CAPS.get(series.style % len(MARKER_PATHS))
    if cap is None:
        return [el("g", _markers(frame, series), opacity="0.55")]
    spots = [
        f"M{frame.x(x):.0f} {frame.y(y):.0f}h{0 if cap == 'round' else 0.1}"
        for x, y in zip(series.x, series.y, strict=True)
        if is_number(y)
    ]
    return [
        el(
            "path",
            d="".join(spots),
            stroke=frame.paint(series.colour),
            stroke_width="7",
            stroke_linecap=cap,
            stroke_opacity="0.55",
        )
    ]


def area(
    frame: Frame, series: Series, stacked: dict[float | str, float], labels: list[Markup]
) -> list[Markup]:
    """Return an area placed on those in `stacked`, which grows by it; append its name to
    `labels`."""
    low = [stacked.get(x, 0.0) for x in series.x]
    high = [a + (y if is_number(y) else 0.0) for a, y in zip(low, series.y, strict=True)]
    stacked.update(zip(series.x, high, strict=True))
    there = [(frame.x(x), frame.y(y)) for x, y in zip(series.x, high, strict=True)]
    back = [(frame.x(x), frame.y(y)) for x, y in zip(series.x, low, strict=True)][::-1]
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*there, *back])
    labels += _area_label(frame, series, low, high)
    return filled(frame, series, "polygon", points=outline)


def _area_label(
    frame: Frame, series: Series, low: Sequence[float], high: Sequence[float]
) -> list[Markup]:
    inner = range(1, len(low) - 1) if len(low) > 2 else range(len(low))
    at = max(inner, key=lambda i: high[i] - low[i], default=None)
    if at is None or high[at] - low[at] < _LABEL_FROM:
        return []
    x, y = frame.x(series.x[at]), frame.y((low[at] + high[at]) / 2)
    wide = 7.2 * len(series.name) + 8
    first, last = frame.x(series.x[0]), frame.x(series.x[-1])
    x = min(max(x, first + wide / 2 + 2), last - wide / 2 - 2)
    box = el(
        "rect",
        x=f"{x - wide / 2:.1f}",
        y=f"{y - 9:.1f}",
        width=f"{wide:.1f}",
        height="18",
        rx="3",
        fill=frame.paint("panel"),
        fill_opacity="0.88",
    )
    return [box, text(x, y + 4.5, series.name, frame, "middle", "ink")]
