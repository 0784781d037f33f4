"""A chart before it is drawn: the same object becomes plotly, a static SVG and a table.

Colours are names of CSS variables without the dashes ("run-0"), so that light, dark and print each
define their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeGuard

Values = Sequence[float | None]


class Kind(StrEnum):
    """Way in which a series is drawn."""

    LINE = "line"
    AREA = "area"
    """An area stacked on the areas before it."""
    BAR = "bar"
    """Bars next to those of other series."""
    STACK = "stack"
    """Bars stacked on each other."""
    POINTS = "points"
    DASHED = "dashed"
    """An expectation: a thin dashed line without markers."""
    CELLS = "cells"
    """A row of coloured cells; the first series is the lowest row."""


MARKED = 24
"""Most points with which a line carries markers."""


class Axis(StrEnum):
    """Kind of the x axis."""

    DEPTH = "depth"
    """Depths 1 .. K: shared by all pictures, and highlighted in all of them at once."""
    NUMBER = "number"
    CATEGORY = "category"


class Unit(StrEnum):
    """Format of a y value in text."""

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
    """Index of marker, dash and glyph: series never differ by colour alone."""
    pattern: str = ""
    """Plotly fill pattern of an area or a bar."""
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    """Upper ends of the 95% intervals; () without intervals."""
    notes: tuple[str, ...] = ()
    """Further text about each value, shown on hover."""
    colours: tuple[str, ...] = ()
    """Colours of the single bars or points, instead of `colour`."""
    tabled: bool = True
    marked: bool = True
    """Whether a line of few points carries markers."""
    sign: str = ""
    """Short axis name of a row of cells, for when `name` is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line with a label."""

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture, independent of its output format."""

    series: tuple[Series, ...]
    x_title: str
    y_title: str
    axis: Axis = Axis.DEPTH
    unit: Unit = Unit.NUMBER
    marks: tuple[Mark, ...] = ()
    level: float | None = None
    """Y value of a horizontal line, such as 0 in a picture of differences."""
    from_zero: bool = True
    whole: bool = False
    """Whether x on a number axis is a count, so that no tick lies between two integers."""
    named: bool = False
    """Whether the legend is shown even for a single series, because its name explains its
    colour."""
    shows_values: bool = False
    """Whether bars carry their values."""
    shade: tuple[float, float] | None = None
    """Ends of a shaded part of the x axis."""
    y_most: float | None = None
    """Lowest upper end of the y axis, which gives adjacent pictures the same scale."""
    width: int = 480
    height: int = 280
    """Height of the static picture, in its own pixels."""

    @property
    def depths(self) -> int:
        """Number of values on the depth axis."""
        return max((len(s.x) for s in self.series), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Ends of the two axes."""

    x: tuple[float, float]
    y: tuple[float, float] = field(default=(0.0, 1.0))


def categories(chart: Chart) -> list[str]:
    """Return the x values of a categorical chart, in order."""
    return list(dict.fromkeys(str(x) for s in chart.series for x in s.x))


def span(chart: Chart) -> Span:
    """Return the ranges of the axes, identical for every output format."""
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
"""Space before the first and after the last depth, identical in every picture, so that depths are
aligned."""


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
    """Return interval ends cut at a multiple of the largest value. Intervals of a handful of
    requests are wide and would hide the values."""
    most = max((y for s in chart.series for y in s.y if is_number(y)), default=0.0)
    stacked = any(s.kind in (Kind.AREA, Kind.STACK) for s in chart.series)
    return known if stacked else [min(max(v, 0.0), _REACH * most) for v in known]


_REACH = 1.6
"""Highest end of a shown interval, as a multiple of the highest value."""
_HALF = 0.5
"""Largest share from which the axis extends to 1."""


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
    """Return whether the value can be drawn."""
    return value is not None and math.isfinite(value)


def depths(values: Sequence[object]) -> tuple[int, ...]:
    """Return the depths 1 .. K."""
    return tuple(range(1, len(values) + 1))


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers in [low, high]."""
    span_ = high - low
    if not span_ > 0:
        return [low]
    rough = span_ / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]
