"""A section of a page before it is HTML: its text, its pictures and tables; and words on runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from driftscope.analysis.number_words import listed
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import Finding
from driftscope.metrics.definition import Definition
from driftscope.trace.manifest import BY_DEPTH
from driftscope_reports.charts import Axis, Unit, figure, is_number, legend
from driftscope_reports.page import part


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One chart with everything that a reader needs to question it."""

    id: str
    title: str
    """Title that states what the picture shows."""
    how: str
    """Reading instructions: two sentences."""
    chart: Any
    """The `plotly.graph_objects.Figure`, see `driftscope_reports.charts`."""
    definitions: tuple[Definition, ...]
    note: str | None = None
    """Note on what is omitted from the picture."""
    assumed: str | None = None
    """Assumptions, shown on demand."""
    numbers: Markup | None = None
    """The chart's numbers as a table, if it differs from the default table."""
    hero: bool = False
    """Whether the picture stands above the others of its section, at the full width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question about the runs, and its answer."""

    id: str
    name: str
    lead: str | None = None
    """One sentence above the pictures."""
    conclusion: str | None = None
    """Result in one line, shown while the section is folded; None for `lead`."""
    above: Sequence[Markup | None] = ()
    """Other content above the pictures."""
    pictures: Sequence[Picture] = ()
    below: Sequence[Markup | None] = ()
    """Other content below the pictures."""
    affects: tuple[str, ...] = ()
    """Notes on the data shown here, by what they affect; each is shown by one section."""
    missing: str | None = None
    """Reason why there is nothing to show."""

    @property
    def in_short(self) -> str:
        """One line that stands for the folded section."""
        return self.conclusion or self.lead or (self.missing or "").partition(". ")[0]


def section_html(made: Section, notes: Sequence[Finding] = ()) -> Markup:
    """Return a section with those of the notes on the data that it shows, folded to one line."""
    here = [note for note in notes if note.affects in made.affects]
    heroes, others = (
        [picture_html(picture) for picture in made.pictures if picture.hero is hero]
        for hero in (True, False)
    )
    return part("section", made, here, heroes, others)


def picture_html(made: Picture) -> Markup:
    """Return a picture with its legend, reading instructions, numbers and definitions."""
    head, rows, words = number_rows(made.chart)
    by_depth = made.chart.layout.meta["axis"] == Axis.DEPTH
    caption = f"Numbers of: {made.title}"
    numbers = made.numbers or part("table", head, rows, words, caption, by_depth=by_depth)
    return part("figure", made, legend(made.chart), numbers)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: int = 1,
    caption: str,
    sortable: bool = False,
    id: str | None = None,  # noqa: A002
) -> Markup:
    """Return a table whose first `words` columns are text and the rest numbers."""
    return part("table", head, rows, words=words, caption=caption, sortable=sortable, id=id)


def by_run_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, runs: int
) -> Markup:
    """Return a sortable table whose first column is the run and whose second is text; the run is
    omitted if it is the only one."""
    if runs < 2:
        return table(head[1:], [row[1:] for row in rows], words=1, caption=caption, sortable=True)
    return table(head, rows, words=2, caption=caption, sortable=True)


MOST_COLUMNS = 6
"""Most series that are columns of a table; with more, every value is a row."""


def number_rows(made: Any) -> tuple[list[str], list[list[str]], int]:
    """Return the head and the rows of the table of a figure's numbers, and how many of its first
    columns are words.

    Every x is a row, so that the table is as narrow as its series are few.
    """
    shown = [trace for trace in made.data if trace.meta["tabled"]]
    meta = made.layout.meta
    unit = Unit(meta["unit"])
    longest = max(shown, key=lambda trace: len(trace.x or ()), default=None)
    xs = tuple(longest.x or ()) if longest else ()
    same_x = all(tuple(trace.x or ()) == xs[: len(trace.x or ())] for trace in shown)
    if same_x and len(shown) <= MOST_COLUMNS and not any(trace.customdata for trace in shown):
        cells = [
            [x if isinstance(x, str) else f"{x:.5g}", *(_cell(trace, at, unit) for trace in shown)]
            for at, x in enumerate(xs)
        ]
        rows = [row for row in cells if any(cell not in ("–", "0") for cell in row[1:])]
        return [meta["x_title"], *(trace.name for trace in shown)], rows, 1
    noted = any(trace.customdata for trace in shown)
    rows = [
        [
            trace.name,
            *([note] if noted else []),
            x if isinstance(x, str) else f"{x:.5g}",
            _cell(trace, at, unit),
        ]
        for trace in shown
        for at, (note, x) in enumerate(
            zip(trace.customdata or [""] * len(trace.x), trace.x, strict=True)
        )
    ]
    about = ["about"] if noted else []
    return ["run", *about, meta["x_title"], meta["y_title"]], rows, 1 + noted


def _cell(trace: Any, at: int, unit: Unit) -> str:
    """Return a value with its interval; a dash where the series has none."""
    if at >= len(trace.y or ()):
        return "–"
    ends = trace.meta["ends"]
    spread = ends[at] if at < len(ends) else None
    between = f" ({' to '.join(format_value(end, unit) for end in spread)})" if spread else ""
    return f"{format_value(trace.y[at], unit)}{between}"


def format_value(value: float | None, unit: Unit) -> str:
    """Return a value of a picture as the text of its table."""
    if not is_number(value):
        return "–"
    if unit is Unit.COUNT:
        return f"{value:,.0f}"
    return f"{value:.2f}" if unit is Unit.MS else f"{value:.3f}"


def by_depth(runs: Sequence[RunSummary], traces: Sequence[Any], y_title: str, **how: Any) -> Any:
    """Return the figure of these traces over depth; `how` as in `charts.figure`."""
    return figure(traces, x_title=axis_name(runs), y_title=y_title, **how)


def by_run(runs: Sequence[RunSummary], parts: Sequence[str]) -> str:
    """Return one part per run: "72% (old) and 83% (new)"; without the name of a single run."""
    if len(runs) < 2:
        return "".join(parts)
    return listed([f"{part} ({run.label})" for part, run in zip(parts, runs, strict=True)])


def about(run: RunSummary, runs: Sequence[RunSummary], words: str) -> str:
    """Return the start of a title, `words` after the run's name if there are several runs."""
    return f"{run.label}: {words}" if len(runs) > 1 else f"{words[:1].upper()}{words[1:]}"


def axis_name(runs: Sequence[RunSummary]) -> str:
    """Return the name of the x axis: block drafters have no depth."""
    kinds = dict.fromkeys(run.manifest.query_kind for run in runs)
    return " or ".join(kinds) if kinds else BY_DEPTH
