"""Legend: the meaning of the signs in a picture."""

from __future__ import annotations

from driftscope.analysis.number_words import number, percent
from driftscope_reports.drawing.chart import MARKED, Chart, Kind, Series, Unit, is_number
from driftscope_reports.drawing.palette import DASH_ARRAYS, MARKER_PATHS, scale_colour
from driftscope_reports.drawing.svg.frame import Paint, css
from driftscope_reports.markup import Child, Markup, el, join

_SWATCHES = {
    "/": "M2 13L11 0M11 13L20 0M18 13L26 1",
    "\\": "M2 0L11 13M11 0L20 13M18 0L26 12",
    "x": "M2 13L11 0M2 0L11 13M14 13L23 0M14 0L23 13",
    "-": "M0 4H26M0 9H26",
    "|": "M5 0V13M13 0V13M21 0V13",
    ".": "M4 4h2M12 4h2M20 4h2M8 9h2M16 9h2",
}
"""Small sample of each pattern."""


def legend(chart: Chart, *, paint: Paint = css) -> Markup | None:
    """Return the names of the series with their signs; None for a single series that needs no
    name."""
    entries = named(chart, paint=paint)
    if not entries:
        return None
    return el("ul", [el("li", sign, " ", name) for sign, name in entries], class_="legend")


def named(chart: Chart, *, paint: Paint = css) -> list[tuple[Markup, str]]:
    """Return the legend's signs and names; [] for a single series that needs no name."""
    if any(s.kind is Kind.CELLS for s in chart.series):
        return _scale(chart)
    shown = [s for s in chart.series if s.kind is not Kind.CELLS and s.tabled]
    return [(_sign(s, paint), s.name) for s in shown] if len(shown) > 1 or chart.named else []


def _scale(chart: Chart) -> list[tuple[Markup, str]]:
    """Return the legend of cells: the colours of zero, half of the largest value, and the
    largest."""
    highest = max((v for s in chart.series for v in s.y if is_number(v)), default=1.0)
    return [
        (
            _swatch(el("rect", width="26", height="13", fill=scale_colour(share))),
            _value(share * highest, chart.unit),
        )
        for share in (0.0, 0.5, 1.0)
    ]


def _value(value: float, unit: Unit) -> str:
    return percent(value) if unit is Unit.SHARE else number(value)


def _swatch(inside: Child) -> Markup:
    return el("svg", join(inside), width="26", height="14", aria_hidden="true", focusable="false")


def _sign(series: Series, paint: Paint) -> Markup:
    colour = paint(series.colour)
    inside: list[Markup]
    if series.kind in (Kind.LINE, Kind.DASHED):
        dash = "6 4" if series.kind is Kind.DASHED else DASH_ARRAYS[series.style % 6]
        inside = [
            el(
                "path",
                d="M0 7H26",
                stroke=colour,
                stroke_width="2.5",
                stroke_dasharray=dash or None,
            )
        ]
        if series.kind is Kind.LINE and series.marked and len(series.x) <= MARKED:
            inside.append(
                el(
                    "path",
                    d=f"M0 0{MARKER_PATHS[series.style % 6]}",
                    fill=colour,
                    transform="translate(13 7)",
                )
            )
    elif series.kind is Kind.POINTS:
        inside = [
            el(
                "path",
                d=f"M0 0{MARKER_PATHS[series.style % 6]}",
                fill=colour,
                opacity="0.7",
                transform="translate(13 7)",
            )
        ]
    else:
        inside = [el("rect", width="26", height="13", fill=colour)]
        if series.pattern:
            d = _SWATCHES.get(series.pattern, "")
            inside.append(el("path", d=d, stroke=paint("panel"), stroke_width="1.2", fill="none"))
    return _swatch(inside)
