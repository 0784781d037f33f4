"""Rendering of sections as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from driftscope.findings.rules_data import QualityWarning
from driftscope_reports.drawing.chart import Axis, span
from driftscope_reports.drawing.svg import LEFT, RIGHT, legend, svg
from driftscope_reports.html.parts import tables
from driftscope_reports.markup import el
from driftscope_reports.model import Picture, Section
from driftscope_reports.page import part

_KEYS = ". Arrow keys move over depths."


def section(made: Section, warnings: Sequence[QualityWarning]) -> Markup:
    """Return one section with its warnings, pictures and tables, folded to one line."""
    lead = made.lead if made.lead != made.in_short else None
    missing = made.missing if made.missing != made.in_short else None
    content = [
        part("paragraph", lead, "lead") if lead else None,
        part("warning_box", [w for w in warnings if w.affects in made.affects]),
        part("paragraph", missing, "missing") if missing else None,
        made.above,
        el("div", [picture(p) for p in made.pictures], class_="pictures")
        if made.pictures
        else None,
        made.body,
    ]
    return part("fold", made.id, made.name, made.in_short, Markup("\n").join(filter(None, content)))


def picture(made: Picture) -> Markup:
    """Return title, static drawing, reading instructions, numbers and definitions of a picture."""
    ends = span(made.chart)
    depth = made.chart.axis is Axis.DEPTH
    static = el("div", svg(made.chart, id=made.id), class_="static")
    live = el("div", class_="live", id=f"live-{made.id}", hidden="")
    drawing = el(
        "div",
        static,
        live,
        class_="drawing",
        role="img" if not depth else "group",
        aria_label=f"Picture: {made.title}{_KEYS if depth else ''}",
        tabindex="0" if depth else None,
        data_axis=made.chart.axis.value,
        data_from=f"{ends.x[0]:g}",
        data_to=f"{ends.x[1]:g}",
        data_left=f"{LEFT / made.chart.width:.5f}",
        data_right=f"{1 - RIGHT / made.chart.width:.5f}",
        data_depths=str(made.chart.depths) if depth else None,
        data_word=made.chart.x_title if depth else None,
    )
    numbers = made.numbers or tables.of_chart(made.chart, made.title)
    return part("figure", made, drawing, legend(made.chart), numbers)
