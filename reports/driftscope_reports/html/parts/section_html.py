"""Rendering of sections as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from driftscope.analysis.findings.data_quality import QualityWarning
from driftscope.metrics.definition import Definition
from driftscope_reports.drawing.chart import Axis, span
from driftscope_reports.drawing.svg import LEFT, RIGHT, legend, svg
from driftscope_reports.html.parts import tables
from driftscope_reports.html.parts.section import Picture, Section
from driftscope_reports.markup import Markup, el

_KEYS = ". Arrow keys move over depths."


def section(number: int, made: Section, warnings: Sequence[QualityWarning]) -> Markup:
    """Return one section with its warnings, pictures and tables."""
    heading = f"{made.id}-heading"
    return el(
        "section",
        el(
            "h2",
            el("span", f"{number}", class_="count", aria_hidden="true"),
            " ",
            made.name,
            id=heading,
        ),
        el("p", made.lead, class_="lead") if made.lead else None,
        warning_box([w for w in warnings if w.affects in made.affects]),
        el("p", made.missing, class_="missing") if made.missing else None,
        made.above,
        _pictures(made),
        made.body,
        id=made.id,
        aria_labelledby=heading,
    )


def _pictures(made: Section) -> list[Markup]:
    """Return the pictures; consecutive ones of one size share a grid."""
    rows = groupby(made.pictures, key=lambda each: each.size)
    return [
        el("div", [picture(p) for p in row], class_=f"pictures {size.value}") for size, row in rows
    ]


def picture(made: Picture) -> Markup:
    """Return title, reading instructions, static drawing, numbers and definitions of a picture."""
    ends = span(made.chart)
    depth = made.chart.axis is Axis.DEPTH
    static = el("div", svg(made.chart, id=made.id), class_="static")
    live = el("div", class_="live", id=f"live-{made.id}", hidden="")
    return el(
        "figure",
        el("figcaption", el("h3", f"{made.title}\u00a0", _link(made))),
        el("p", el("b", "How to read this: "), made.how, class_="how"),
        el("p", made.note, class_="note") if made.note else None,
        legend(made.chart),
        el(
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
        ),
        el(
            "div",
            el(
                "details",
                el("summary", "Numbers"),
                made.numbers or tables.of_chart(made.chart, made.title),
            ),
            definitions(made.definitions),
            el("details", el("summary", "Assumptions"), el("p", made.assumed))
            if made.assumed
            else None,
            el("a", "Both runs", href=f"#{made.both}", class_="both") if made.both else None,
            class_="more",
        ),
        id=made.id,
    )


def _link(made: Picture) -> Markup:
    return el(
        "a",
        "#",
        href=f"#{made.id}",
        class_="anchor",
        aria_label=f"Link to this picture: {made.title}",
    )


def definitions(known: Sequence[Definition]) -> Markup:
    """Return the definitions of the figures, in the words of `driftscope.metrics`."""
    entries = [
        (
            el("dt", d.title, " ", el("code", d.name)),
            el("dd", f"{d.meaning} Unit: {d.unit}. Range: {d.range}. Source: {d.source}."),
        )
        for d in known
    ]
    return el("details", el("summary", "Definition"), el("dl", entries))


def warning_box(here: Sequence[QualityWarning], head: str = "Mind:") -> Markup | None:
    """Return the warnings that affect a section; None without any."""
    if not here:
        return None
    items = [el("li", el("b", f"{w.run}: "), f"{w.message}.") for w in here]
    return el(
        "aside",
        el("b", f"⚠ {head}"),
        el("ul", items),
        class_="warning",
        aria_label="Quality warnings",
    )
