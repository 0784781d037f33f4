"""Rendering of sections as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.findings.rules_data import QualityWarning
from driftscope.metrics.definition import Definition
from driftscope_reports.drawing.chart import Axis, span
from driftscope_reports.drawing.svg import LEFT, RIGHT, legend, svg
from driftscope_reports.html.parts import tables
from driftscope_reports.html.parts.section import Picture, Section, Size
from driftscope_reports.markup import Child, Markup, el

_KEYS = ". Arrow keys move over depths."


def section(made: Section, warnings: Sequence[QualityWarning]) -> Markup:
    """Return one section with its warnings, pictures and tables, folded to one line."""
    lead = made.lead if made.lead != made.in_short else None
    missing = made.missing if made.missing != made.in_short else None
    return folded(
        made.id,
        made.name,
        made.in_short,
        el("p", lead, class_="lead") if lead else None,
        warning_box([w for w in warnings if w.affects in made.affects]),
        el("p", missing, class_="missing") if missing else None,
        made.above,
        el("div", [picture(p) for p in made.pictures], class_="pictures")
        if made.pictures
        else None,
        made.body,
    )


def folded(id: str, name: str, conclusion: Child, *content: Child) -> Markup:  # noqa: A002
    """Return a section that shows its name and its conclusion until it is opened."""
    heading = f"{id}-heading"
    return el(
        "section",
        el(
            "details",
            el(
                "summary",
                el("h2", name, id=heading),
                " ",
                el("span", conclusion, class_="conclusion"),
            ),
            el("div", *content, class_="content"),
            class_="fold",
        ),
        id=id,
        aria_labelledby=heading,
    )


def picture(made: Picture) -> Markup:
    """Return title, static drawing, reading instructions, numbers and definitions of a picture."""
    ends = span(made.chart)
    depth = made.chart.axis is Axis.DEPTH
    static = el("div", svg(made.chart, id=made.id), class_="static")
    live = el("div", class_="live", id=f"live-{made.id}", hidden="")
    return el(
        "figure",
        el("figcaption", el("h3", f"{made.title}\u00a0", _link(made))),
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
        _more(made),
        id=made.id,
        data_shape=f"{made.chart.height / made.chart.width:.4f}",
        class_="wide" if made.size is Size.WIDE else None,
    )


def _more(made: Picture) -> Markup:
    """Return what opens over a picture: how to read it, its numbers and definitions."""
    how = [
        el("p", el("b", "How to read this: "), made.how),
        el("p", made.note, class_="note") if made.note else None,
        el("p", el("b", "Assumptions: "), made.assumed) if made.assumed else None,
    ]
    parts = (
        ("How to read", how),
        ("Numbers", made.numbers or tables.of_chart(made.chart, made.title)),
        ("Definition", definitions(made.definitions)),
    )
    panels = [
        el(
            "details",
            el("summary", name),
            el("div", content, class_="panel", tabindex="0"),
            name=f"more-{made.id}",
            class_="pop how" if content is how else "pop",
        )
        for name, content in parts
    ]
    both = el("a", "Both", href=f"#{made.both}", class_="both") if made.both else None
    return el("div", panels, both, class_="more")


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
    return el("dl", entries)


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
