"""A section of the report before it is HTML: its text, its pictures and their numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from driftscope.metrics.definition import Definition
from driftscope_reports.drawing.chart import Chart
from driftscope_reports.markup import Markup


class Size(StrEnum):
    """Share of the page's width that a picture takes."""

    NORMAL = "normal"
    """One column of the page."""
    WIDE = "wide"
    """Two columns."""


_PIXELS = {Size.NORMAL: (330, 186), Size.WIDE: (688, 186)}
"""Width and height of static pictures in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One chart with everything that a reader needs to question it."""

    id: str
    title: str
    """Title that states what the picture shows."""
    how: str
    """Reading instructions: two sentences."""
    chart: Chart
    definitions: tuple[Definition, ...]
    note: str | None = None
    """Note on what is omitted from the picture."""
    assumed: str | None = None
    """Assumptions, shown on demand."""
    numbers: Markup | None = None
    """The chart's numbers as a table, if it differs from the default table."""
    size: Size = Size.NORMAL
    both: str | None = None
    """For a difference: id of the picture that overlays the runs."""


def sized(picture: Picture, size: Size) -> Picture:
    """Return `picture` for another width."""
    return replace(picture, size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question about the runs, and its answer."""

    id: str
    name: str
    lead: str | None = None
    """One sentence above the pictures."""
    conclusion: str | None = None
    """Result in one line, shown while the section is folded; None for `lead`."""
    above: Markup | None = None
    """Other content above the pictures."""
    pictures: tuple[Picture, ...] = ()
    body: Markup | None = None
    """Other content below the pictures."""
    affects: tuple[str, ...] = ()
    """Quality warnings shown here, see `driftscope.findings.rules_data`."""
    missing: str | None = None
    """Reason why there is nothing to show."""

    @property
    def in_short(self) -> str:
        """One line that stands for the folded section."""
        return self.conclusion or self.lead or (self.missing or "").partition(". ")[0]


def in_page(section: Section) -> Section:
    """Return `section` with its pictures as large as the page shows them."""
    return replace(section, pictures=tuple(_drawn(each) for each in section.pictures))


def _drawn(picture: Picture) -> Picture:
    width, height = _PIXELS[picture.size]
    return replace(picture, chart=replace(picture.chart, width=width, height=height))
