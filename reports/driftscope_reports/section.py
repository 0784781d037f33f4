"""A section of the report before it is HTML: what it says, its pictures and the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.metrics.definition import Definition
from driftscope_reports.chart import Chart
from driftscope_reports.markup import Markup


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
    """What is left out of it, or in doubt."""
    numbers: Markup | None = None
    """The same numbers as a table, where it is not simply the chart's."""
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question about the runs, and its answer."""

    id: str
    name: str
    lead: str | None = None
    """One sentence over the pictures."""
    pictures: tuple[Picture, ...] = ()
    body: Markup | None = None
    """What is no picture, below them."""
    affects: tuple[str, ...] = ()
    """Which quality warnings stand here, see `driftscope.analysis.quality`."""
    missing: str | None = None
    """Why there is nothing to show."""
