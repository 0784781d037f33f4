"""Grouped bars, stacked bars and rows of coloured cells."""

from __future__ import annotations

from itertools import pairwise

from driftscope_reports.drawing.chart import Series, is_number
from driftscope_reports.drawing.palette import format_value, scale_colour
from driftscope_reports.drawing.svg.frame import LEFT, Frame, text
from driftscope_reports.drawing.svg.lines import whiskers
from driftscope_reports.drawing.svg.patterns import filled
from driftscope_reports.markup import Markup, el

_BAR_ROOM = 0.72
"""Share of its place that a bar fills."""
_WIDEST = 64.0
"""Largest width of a bar in pixels: two bars alone need not fill half of the picture each."""
_VALUE_ROOM = 30.0
"""Smallest place of a bar, in pixels, with which its value is written above it."""


def _place(frame: Frame) -> float:
    """Return the distance between neighbouring bars, in pixels."""
    xs = sorted({frame.x(x) for s in frame.chart.series for x in s.x})
    gaps = [b - a for a, b in pairwise(xs)]
    return min(gaps, default=(frame.right - LEFT) / 3)


def bars(frame: Frame, series: Series, number: int, of: int) -> list[Markup]:
    """Return the bars of one series, the `number`-th of `of` adjacent ones."""
    each = min(_BAR_ROOM * _place(frame) / of, _WIDEST)
    out: list[Markup] = []
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        if not is_number(y):
            continue
        left = frame.x(x) + (number - of / 2) * each
        top, base = frame.y(max(y, 0.0)), frame.y(min(max(0.0, frame.y_low), frame.y_high))
        bottom = frame.y(min(y, 0.0)) if y < 0 else base
        out += filled(
            frame,
            series,
            "rect",
            colour=series.colours[i] if series.colours else "",
            x=f"{left:.1f}",
            y=f"{top:.1f}",
            width=f"{0.94 * each:.1f}",
            height=f"{max(bottom - top, 0.8):.1f}",
        )
        low, high = (series.low[i], series.high[i]) if series.low else (None, None)
        if is_number(low) and is_number(high):
            at = left + 0.47 * each
            out.append(
                el(
                    "path",
                    d=f"M{at:.1f} {frame.y(low):.1f}V{frame.y(high):.1f}",
                    stroke=frame.paint("ink"),
                    stroke_width="1.4",
                )
            )
        if frame.chart.shows_values and _place(frame) >= _VALUE_ROOM:
            word = format_value(round(y, 2 if y >= _WHOLE else 3), frame.chart.unit, axis=True)
            out.append(text(left + 0.47 * each, top - 5, word, frame, "middle", "ink"))
    return out


_WHOLE = 0.0995
"""Smallest share for which a bar shows whole percents."""


def stack(frame: Frame, series: Series, stacked: dict[float | str, float]) -> list[Markup]:
    """Return bars placed on those in `stacked`, which grows by them."""
    each = min(_place(frame), (frame.right - LEFT) / max(len(series.x), 1))
    parts = []
    for x, y in zip(series.x, series.y, strict=True):
        low = stacked.get(x, 0.0)
        if not is_number(y) or not y:
            continue
        stacked[x] = low + y
        ends = sorted((frame.y(low), frame.y(low + y)))
        left, wide = frame.x(x) - 0.46 * each, 0.92 * each
        parts.append(f"M{left:.1f} {ends[0]:.1f}h{wide:.1f}V{ends[1]:.1f}h-{wide:.1f}z")
    out = filled(frame, series, "path", d="".join(parts))
    return [*out, *(whiskers(frame, series, frame.paint("ink")) if series.low else [])]


def cells(frame: Frame, series: Series, row: int, highest: float) -> list[Markup]:
    """Return one path per colour, because there are many cells."""
    height, width = abs(frame.y(1) - frame.y(0)), _place(frame)
    by_colour: dict[str, list[str]] = {}
    for x, y in zip(series.x, series.y, strict=True):
        if is_number(y):
            at = f"M{frame.x(x) - width / 2:.1f} {frame.y(row) - height / 2:.1f}"
            cell = f"{at}h{width:.1f}v{height:.1f}h-{width:.1f}z"
            by_colour.setdefault(scale_colour(y / highest if highest else 0.0), []).append(cell)
    return [el("path", d="".join(parts), fill=name) for name, parts in sorted(by_colour.items())]
