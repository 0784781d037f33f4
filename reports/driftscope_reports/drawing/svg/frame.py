"""Conversion of values to pixels, and the basic strokes of every picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from driftscope_reports.drawing.chart import Axis, Chart, categories, span
from driftscope_reports.markup import Markup, el

LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44
_CLIP = 26

Paint = Callable[[str], str]
"""Function from a colour name to its text in the SVG."""


def css(name: str) -> str:
    """Return the CSS variable of a colour, which light, dark and print define."""
    return name if name.startswith("#") else f"var(--{name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Positions of a chart's values in its picture, in pixels from the top left."""

    chart: Chart
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    categories: dict[str, int]
    paint: Paint
    id: str

    @property
    def right(self) -> float:
        """Right end of the x axis, in pixels."""
        return self.chart.width - RIGHT

    @property
    def base(self) -> float:
        """Height of the x axis, in pixels from the top."""
        return self.chart.height - BOTTOM

    def x(self, value: float | str) -> float:
        """Return the position in pixels from the left."""
        at = self.categories[str(value)] if self.chart.axis is Axis.CATEGORY else float(value)
        share = (at - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (self.right - LEFT)

    def y(self, value: float) -> float:
        """Return the position in pixels from the top; a value outside the axis is placed at its
        end."""
        value = min(max(value, self.y_low), self.y_high)
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return self.base - share * (self.base - TOP)


def frame_of(chart: Chart, paint: Paint, id: str) -> Frame:  # noqa: A002
    """Return the frame of `chart`; its pattern ids begin with `id`."""
    ends = span(chart)
    return Frame(
        chart=chart,
        x_low=ends.x[0],
        x_high=ends.x[1],
        y_low=ends.y[0],
        y_high=ends.y[1],
        categories={name: at for at, name in enumerate(categories(chart))},
        paint=paint,
        id=id,
    )


def line(
    x1: float | str, y1: float | str, x2: float | str, y2: float | str, colour: str, dash: str = ""
) -> Markup:
    """Return a straight stroke."""
    at = [v if isinstance(v, str) else f"{v:.1f}" for v in (x1, y1, x2, y2)]
    return el(
        "path",
        d=f"M{at[0]} {at[1]}L{at[2]} {at[3]}",
        stroke=colour,
        stroke_dasharray=dash or None,
        fill="none",
    )


def text(
    x: float, y: float, words: str, frame: Frame, anchor: str = "start", colour: str = "soft"
) -> Markup:
    """Return text at a point."""
    return el(
        "text",
        clipped(words, 60),
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        text_anchor=anchor,
        fill=frame.paint(colour),
    )


def clipped(words: str, length: int = _CLIP) -> str:
    """Return `words`, cut with an ellipsis if they are too long."""
    return words if len(words) <= length else f"{words[: length - 1]}…"
