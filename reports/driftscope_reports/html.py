"""The report as one HTML file: no network, no clock, same runs and same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import driftscope
from driftscope.analysis.analyze import Analysis
from driftscope.analysis.quality import QualityWarning
from driftscope.analysis.words import listed
from driftscope.metrics.definition import Definition
from driftscope_reports import top
from driftscope_reports.glossary import glossary
from driftscope_reports.markup import Markup, el, join, script_json
from driftscope_reports.provenance import provenance
from driftscope_reports.section import Panel, Section
from driftscope_reports.sections import (
    acceptance,
    attention,
    confidence,
    fallback,
    hidden,
    segments,
    senders,
)

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
"""Content-Security-Policy: the browser itself forbids any request."""

_SECTIONS = (
    acceptance.section,
    hidden.section,
    attention.section,
    confidence.section,
    segments.section,
    fallback.section,
)


def to_html(analysis: Analysis, *, command: str | None = None) -> str:
    """The page; `command` is the command line that made it, shown at its end."""
    # What is made of a probe's runs needs one.
    makers = (senders.section, *(_SECTIONS if analysis.runs else ()))
    sections = [made for make in makers if (made := make(analysis)) is not None]
    affected = {section.affects for section in sections}
    figures = {f"figure-{p.id}": p.figure for section in sections for p in section.panels}
    body = el(
        "body",
        el(
            "main",
            el("p", "driftscope", class_="brand"),
            top.verdict(analysis),
            top.cards(analysis),
            _warnings([w for w in analysis.warnings if w.affects not in affected]),
            glossary(),
            top.findings(analysis),
            [_section(section, analysis) for section in sections],
            provenance(analysis),
            _footer(command),
        ),
        script_json(figures, id="figures"),
        _script(_plotly()),
        _script(_asset("report.js")),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{_head(analysis)}\n{body}\n</html>\n'


def _head(analysis: Analysis) -> Markup:
    labels = [run.label for run in analysis.runs] + [run.label for run in analysis.senders]
    names = listed(labels)
    return el(
        "head",
        el("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"Drift report: {names}"),
        Markup(f"<style>\n{_asset('report.css')}</style>"),
    )


def _section(section: Section, analysis: Analysis) -> Markup:
    numbers = section.numbers
    if section.folded:
        numbers = el("details", el("summary", "The same numbers as a table"), section.numbers)
    return el(
        "section",
        el("h2", section.title),
        el("p", el("b", "How to read this: "), section.how, class_="how"),
        _warnings([w for w in analysis.warnings if w.affects == section.affects]),
        el("div", [_panel(p) for p in section.panels], class_="panels") if section.panels else None,
        numbers,
        _definitions(section.definitions),
        id=section.id,
    )


def _panel(panel: Panel) -> Markup:
    caption: Markup | str = panel.caption
    if panel.definition:
        caption = el("abbr", panel.caption, title=panel.definition.meaning)
    return el(
        "figure",
        el("figcaption", caption),
        el("div", class_="picture", id=f"figure-{panel.id}", role="img", aria_label=panel.caption),
        el("noscript", el("p", "The picture needs JavaScript; its numbers are in the table.")),
    )


def _definitions(definitions: Sequence[Definition]) -> Markup:
    entries = [
        (
            el("dt", d.title, " ", el("code", d.name)),
            el("dd", f"{d.meaning} Range: {d.range}. Source: {d.source}."),
        )
        for d in definitions
    ]
    return el("details", el("summary", "What exactly is measured"), el("dl", entries))


def _warnings(here: Sequence[QualityWarning]) -> Markup | None:
    """Beside the section that they affect; at the top where it has none."""
    if not here:
        return None
    items = [el("li", el("b", f"{w.run}: "), f"{w.message}.") for w in here]
    return el("aside", el("b", "⚠ Mind:"), el("ul", items), class_="warning")


def _footer(command: str | None) -> Markup:
    return el(
        "footer",
        el("p", f"Made by driftscope {driftscope.__version__}. Everything is in this file."),
        el("p", "Made again with ", el("code", command)) if command else None,
    )


def _script(code: str) -> Markup:
    return Markup(f"<script>\n{code}\n</script>")


def _asset(name: str) -> str:
    return (files("driftscope_reports") / "assets" / name).read_text(encoding="utf-8")


def _plotly() -> Markup:
    """plotly.js as its Python package ships it, licence comment included."""
    code = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return join(Markup(code))
