"""A picture before it is drawn: the same one becomes plotly, a static SVG, a PNG and a table.

Colours are names of CSS variables without the dashes ("run-0"), so that light, dark and print each
have their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeGuard

Values = Sequence[float | None]


class Kind(StrEnum):
    """How a series is drawn."""

    LINE = "line"
    AREA = "area"
    """Stacked on the areas before it."""
    BAR = "bar"
    """Beside the bars of other series."""
    STACK = "stack"
    """Bars on top of each other."""
    POINTS = "points"
    DASHED = "dashed"
    """An expectation: a thin dashed line without markers."""
    CELLS = "cells"
    """A row of coloured cells; the first series is the lowest row."""


MARKED = 24
"""Points up to which a line carries markers."""


class Axis(StrEnum):
    """What x is."""

    DEPTH = "depth"
    """1 .. K: shared by all pictures, and marked in all of them at once."""
    NUMBER = "number"
    CATEGORY = "category"


class Unit(StrEnum):
    """How a y value is said."""

    SHARE = "share"
    NUMBER = "number"
    COUNT = "count"
    MS = "ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One named row of values."""

    name: str
    kind: Kind = Kind.LINE
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    colour: str = "run-0"
    style: int = 0
    """Marker, dash and glyph: series are never told apart by colour alone."""
    pattern: str = ""
    """Of an area or a bar: a plotly fill pattern."""
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    """The 95% interval, where there is one."""
    notes: tuple[str, ...] = ()
    """What else to say about each value when it is pointed at."""
    colours: tuple[str, ...] = ()
    """Of each bar or point, instead of `colour`."""
    tabled: bool = True
    marked: bool = True
    """Whether a line of few points carries markers."""
    sign: str = ""
    """Of a row of cells: its name on the axis, where `name` is too long for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line with a word."""

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture."""

    series: tuple[Series, ...]
    x_title: str
    y_title: str
    axis: Axis = Axis.DEPTH
    unit: Unit = Unit.NUMBER
    marks: tuple[Mark, ...] = ()
    level: float | None = None
    """A horizontal line, such as 0 in a picture of differences."""
    from_zero: bool = True
    whole: bool = False
    """Whether x on a number axis counts something, so that there is nothing between two ticks."""
    named: bool = False
    """Whether the legend stands even over a single series: its name says what its colour does."""
    said: bool = False
    """Whether bars carry their values."""
    y_most: float | None = None
    """Where the y axis ends at least: pictures side by side then have the same."""
    width: int = 480
    height: int = 280
    """Of the static picture, in its own pixels."""

    @property
    def depths(self) -> int:
        """Values on the depth axis."""
        return max((len(s.x) for s in self.series), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where the axes begin and end."""

    x: tuple[float, float]
    y: tuple[float, float] = field(default=(0.0, 1.0))


def categories(chart: Chart) -> list[str]:
    """The x values of a chart by category, in order."""
    return list(dict.fromkeys(str(x) for s in chart.series for x in s.x))


def span(chart: Chart) -> Span:
    """The axes' ranges, the same in every way to draw the chart."""
    return Span(x=_x_span(chart), y=_y_span(chart))


def _x_span(chart: Chart) -> tuple[float, float]:
    if chart.axis is Axis.CATEGORY:
        return -0.5, max(len(categories(chart)), 1) - 0.5
    known = [float(x) for s in chart.series for x in s.x]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if chart.axis is Axis.DEPTH:
        return 1.0 - _DEPTH_EDGE, max(high, 1.0) + _DEPTH_EDGE
    room = 0.03 * (high - low) or 0.5
    return low - room, high + room


_DEPTH_EDGE = 0.5
"""Beside the first and the last depth, in every picture, so that depths stand below each other."""


def _y_span(chart: Chart) -> tuple[float, float]:
    if any(s.kind is Kind.CELLS for s in chart.series):
        return -0.5, len(chart.series) - 0.5
    known = _heights(chart)
    if chart.from_zero and all(y >= 0 for s in chart.series for y in s.y if is_number(y)):
        known = _bounded(chart, known)
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    high = max(high, chart.y_most or high)
    if chart.unit is Unit.SHARE and low >= 0 and chart.from_zero:
        return 0.0, 1.02 if high > _HALF else max(1.15 * high, 0.02)
    if chart.from_zero and low >= 0:
        return 0.0, 1.08 * high or 1.0
    room = 0.08 * (high - low) or 0.5
    return low - room, high + room


def _bounded(chart: Chart, known: list[float]) -> list[float]:
    """Intervals of a handful of requests reach far: they are cut, so that values can be seen."""
    most = max((y for s in chart.series for y in s.y if is_number(y)), default=0.0)
    stacked = any(s.kind in (Kind.AREA, Kind.STACK) for s in chart.series)
    return known if stacked else [min(max(v, 0.0), _REACH * most) for v in known]


_REACH = 1.6
"""How far above the highest value an interval is shown."""
_HALF = 0.5
"""Share from which the axis goes to 1."""


def _heights(chart: Chart) -> list[float]:
    out = [v for s in chart.series for v in (*s.low, *s.high) if is_number(v)]
    out += [] if chart.level is None else [chart.level]
    stacked: dict[float | str, float] = {}
    for s in chart.series:
        for x, y in zip(s.x, s.y, strict=True):
            if is_number(y):
                on = stacked.get(x, 0.0) if s.kind in (Kind.AREA, Kind.STACK) else 0.0
                if s.kind in (Kind.AREA, Kind.STACK):
                    stacked[x] = on + y
                out.append(on + y)
    return out


def is_number(value: float | None) -> TypeGuard[float]:
    """Whether there is something to draw."""
    return value is not None and math.isfinite(value)


def depths(values: Sequence[object]) -> tuple[int, ...]:
    """1 .. K."""
    return tuple(range(1, len(values) + 1))


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers in [low, high]."""
    span_ = high - low
    if not span_ > 0:
        return [low]
    rough = span_ / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]
