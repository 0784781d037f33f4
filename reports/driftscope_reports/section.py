"""A section of the report before it is HTML: what it says, its pictures and the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.metrics.definition import Definition
from driftscope_reports.figures import Figure
from driftscope_reports.markup import Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    id: str
    caption: str
    definition: Definition | None = None
    """Shown when the caption is pointed at."""
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question about the runs, and its answer."""

    id: str
    title: str
    """States what is seen."""
    how: str
    """How to read this: two sentences."""
    panels: tuple[Panel, ...] = ()
    numbers: Markup
    """The pictures' numbers as tables."""
    folded: bool = True
    """Whether the numbers are behind a click; not where they are all there is."""
    definitions: tuple[Definition, ...]
    affects: str
    """Which quality warnings stand here, see `driftscope.analysis.quality`."""
