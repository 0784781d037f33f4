"""A section of the report before it is HTML: what it says, its pictures and the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from driftscope.metrics.definition import Definition
from driftscope_reports.drawing.chart import Chart
from driftscope_reports.markup import Markup


class Size(StrEnum):
    """How much of the page's width a picture takes."""

    NORMAL = "normal"
    """Half."""
    SMALL = "small"
    """A third: one of several that are looked at together."""
    WIDE = "wide"


_PIXELS = {Size.SMALL: (380, 210), Size.WIDE: (900, 300)}
"""Width and height of static pictures that are not as high and wide as charts usually are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One chart with everything that a reader needs to question it."""

    id: str
    title: str
    """States what is seen."""
    how: str
    """How to read this: two sentences."""
    chart: Chart
    definitions: tuple[Definition, ...]
    note: str | None = None
    """What is left out of it."""
    assumed: str | None = None
    """What it rests on, said on demand."""
    numbers: Markup | None = None
    """The same numbers as a table, where it is not simply the chart's."""
    size: Size = Size.NORMAL
    both: str | None = None
    """Of a difference: the picture that has the runs over each other."""


def sized(picture: Picture, size: Size) -> Picture:
    """`picture` drawn for another width."""
    width, height = _PIXELS.get(size, (picture.chart.width, picture.chart.height))
    return replace(picture, size=size, chart=replace(picture.chart, width=width, height=height))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question about the runs, and its answer."""

    id: str
    name: str
    lead: str | None = None
    """One sentence over the pictures."""
    above: Markup | None = None
    """What is no picture and comes before them."""
    pictures: tuple[Picture, ...] = ()
    body: Markup | None = None
    """What is no picture, below them."""
    affects: tuple[str, ...] = ()
    """Which quality warnings stand here, see `driftscope.analysis.findings.data_quality`."""
    missing: str | None = None
    """Why there is nothing to show."""
