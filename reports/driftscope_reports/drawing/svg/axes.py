"""Axes, their grid, and lines and labels across a picture."""

from __future__ import annotations

from driftscope_reports.drawing.chart import Axis, Kind, ticks
from driftscope_reports.drawing.palette import format_value
from driftscope_reports.drawing.svg.frame import LEFT, TOP, Frame, clipped, line, text
from driftscope_reports.markup import Markup, el

_CHARACTER = 7.0
"""Width of a character on an axis, in pixels."""
_SMALL = 11
"""Font size of category names that are too close for the usual size."""
_SIZE = 13
_NAMED = 8
"""Most categories that are named."""
_ROWS = 16
"""Most rows of cells that are named."""


def grid(frame: Frame) -> list[Markup]:
    """Return grid lines at round values, with their labels."""
    out = _rows(frame) if any(s.kind is Kind.CELLS for s in frame.chart.series) else _lines(frame)
    out.append(line(LEFT, frame.base, frame.right, frame.base, frame.paint("grid")))
    words = [text(x, frame.base + 18, word, frame, "middle") for x, word in _x_ticks(frame)]
    size = f"{_SMALL}" if _crowded(frame) else None
    return [*out, el("g", words, font_size=size)]


def _lines(frame: Frame) -> list[Markup]:
    out = []
    for value in ticks(frame.y_low, frame.y_high, 5 if frame.chart.height > 240 else 3):
        y = f"{frame.y(value):.1f}"
        out.append(line(LEFT, y, frame.right, y, frame.paint("grid")))
        word = format_value(value, frame.chart.unit, axis=True)
        out.append(text(LEFT - 8, frame.y(value) + 4, word, frame, anchor="end"))
    return out


def _rows(frame: Frame) -> list[Markup]:
    series = frame.chart.series
    every = max(1, len(series) // _ROWS)
    return [
        text(LEFT - 8, frame.y(row * every) + 4, (each.sign or each.name)[:9], frame, "end")
        for row, each in enumerate(series[::every])
    ]


def _x_ticks(frame: Frame) -> list[tuple[float, str]]:
    chart = frame.chart
    if chart.axis is Axis.DEPTH:
        every = max(1, -(-chart.depths // 12))
        return [(frame.x(d), str(d)) for d in range(1, max(chart.depths, 1) + 1, every)]
    if chart.axis is Axis.CATEGORY:
        names = list(frame.categories)
        every = max(1, -(-len(names) // _NAMED))
        wide = _CHARACTER * (_SMALL / _SIZE if _crowded(frame) else 1)
        room = max(4, int(_each(frame) / wide))
        return [(frame.x(name), clipped(name, room)) for name in names[::every]]
    steps = ticks(frame.x_low, frame.x_high, 6 if chart.width > 400 else 4)
    return [(frame.x(v), f"{v:g}") for v in steps if not chart.whole or v == round(v)]


def _each(frame: Frame) -> float:
    """Return the space per named category, in pixels."""
    every = max(1, -(-len(frame.categories) // _NAMED))
    return (frame.right - LEFT) / max(1, -(-len(frame.categories) // every))


def _crowded(frame: Frame) -> bool:
    names = list(frame.categories) if frame.chart.axis is Axis.CATEGORY else []
    return bool(names) and max(map(len, names)) * _CHARACTER > _each(frame)


def titles(frame: Frame) -> list[Markup]:
    """Return the titles of the axes."""
    chart = frame.chart
    middle = (TOP + frame.base) / 2
    across = text((LEFT + frame.right) / 2, chart.height - 8, chart.x_title, frame, "middle")
    up = el(
        "text",
        chart.y_title,
        x="0",
        y="0",
        fill=frame.paint("soft"),
        text_anchor="middle",
        transform=f"translate(14 {middle:.0f}) rotate(-90)",
    )
    return [across, up]


def shade(frame: Frame) -> Markup | None:
    """Return the shaded part of the picture; None if it has none."""
    if frame.chart.shade is None:
        return None
    low, high = map(frame.x, frame.chart.shade)
    return el(
        "rect",
        x=f"{low:.1f}",
        y=f"{TOP}",
        width=f"{high - low:.1f}",
        height=f"{frame.base - TOP:.1f}",
        fill=frame.paint("soft"),
        fill_opacity="0.13",
    )


def level(frame: Frame) -> Markup | None:
    """Return the chart's horizontal line; None if it has none."""
    if frame.chart.level is None:
        return None
    y = f"{frame.y(frame.chart.level):.1f}"
    return line(LEFT, y, frame.right, y, frame.paint("ink"))


def marks(frame: Frame) -> list[Markup]:
    """Return vertical lines with their labels, which alternate in height."""
    out = []
    for number, mark in enumerate(frame.chart.marks):
        x = frame.x(mark.x)
        out.append(line(x, TOP, x, frame.base, frame.paint("ink"), "3 3"))
        left = x > frame.chart.width / 2
        y = frame.base - 6 - 17 * (number % 3)
        anchor = "end" if left else "start"
        out.append(text(x + (-5 if left else 5), y, mark.text, frame, anchor, "ink"))
    return out
