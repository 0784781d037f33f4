"""The report as one HTML file, without network or clock: the same runs give the same bytes."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import replace
from importlib.resources import files
from typing import TypeVar

import driftscope
from driftscope.analysis.closeup.effect import Effect
from driftscope.analysis.findings.data_quality import LOSS, QualityWarning, losses_among
from driftscope.analysis.number_words import listed
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary import strict_json
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.palette import DARK, LIGHT, VIRIDIS, variables
from driftscope_reports.drawing.plotly_figure import figure
from driftscope_reports.html import finding_cards, first_screen, provenance
from driftscope_reports.html.embedded_data import embedded
from driftscope_reports.html.glossary import glossary
from driftscope_reports.html.parts import section_html
from driftscope_reports.html.parts.section import Section
from driftscope_reports.html.sections import (
    drift,
    effect,
    fallback,
    replays,
    requests,
    segments,
    speed,
)
from driftscope_reports.html.sections.comparison import two_runs
from driftscope_reports.markup import Markup, el, script_json

MAX_BYTES = 2_000_000
"""Size limit of the whole file, whatever the run's size."""
_SECTIONS = (
    drift.section,
    effect.section,
    speed.section,
    fallback.section,
    segments.section,
    two_runs.section,
    requests.section,
)
_T = TypeVar("_T")
_LEAN = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Shares of the single requests and heads to keep, tried in order until the file is small
enough."""


def to_html(analysis: Analysis, *, command: str | None = None) -> str:
    """Return the page; `command` is the command line that made it, shown at its end."""
    for share in _LEAN:
        text = _page(thinned(analysis, share), command)
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def sections(analysis: Analysis, command: str | None = None) -> list[Section]:
    """Return every section, in the order of the page."""
    made = [make(analysis) for make in _SECTIONS] if analysis.runs else []
    sent = replays.section(analysis)
    return [*([sent] if sent else []), *made, provenance.section(analysis, command)]


def thinned(analysis: Analysis, share: float) -> Analysis:
    """Return `analysis` with this share of the single requests and heads, for a file that would be
    too large. A warning reports the omission."""
    if share >= 1:
        return analysis
    runs = tuple(_thinned(run, share) for run in analysis.runs)
    told = QualityWarning(
        id="thinned",
        run="This report",
        affects="requests",
        message=_LEFT_OUT.format(", heads, layers and segments" if share < _HEADS_FROM else ""),
    )
    return replace(analysis, runs=runs, warnings=(*analysis.warnings, told))


_LEFT_OUT = "single requests{} are left out to keep the file small; a report of fewer runs has more"
_HEADS_FROM = 0.5
"""Share below which heads are omitted as well."""


def _thinned(run: RunSummary, share: float) -> RunSummary:
    if run.closeup is None:
        return run
    kept = replace(
        run.closeup,
        named=_ends(run.closeup.named, share),
        opened=_ends(run.closeup.opened, share),
        heads=run.closeup.heads if share >= _HEADS_FROM else None,
    )
    if share > 0:
        return replace(run, closeup=kept)
    effects = tuple(_fewer(effect) for effect in kept.effects)
    largest = sorted(run.segments, key=lambda segment: -segment.rounds)[:_SEGMENTS]
    flat = {name: tuple(d[:1] for d in by) for name, by in run.attention.by_layer.items()}
    return replace(
        run,
        closeup=replace(kept, effects=effects, timeline=None),
        segments=tuple(largest),
        side=None,
        groups=replace(run.groups, label=(), shares={}),
        attention=replace(run.attention, by_layer=flat),
    )


_SEGMENTS = 12
_EACH_POINT = 6
"""Limits used when a report must shrink: segments kept per run, one scatter point in so many."""


def _fewer(effect: Effect) -> Effect:
    return replace(
        effect,
        drift=effect.drift[::_EACH_POINT],
        mean_length=effect.mean_length[::_EACH_POINT],
        rounds=effect.rounds[::_EACH_POINT],
    )


def _ends(values: tuple[_T, ...], share: float) -> tuple[_T, ...]:
    each = int(len(values) * share) // 2
    return values[:each] + values[len(values) - each :]


def _page(analysis: Analysis, command: str | None) -> str:
    made = sections(analysis, command)
    code, packed = script(), plotly()
    style = stylesheet()
    figures = {p.id: figure(p.chart) for section in made for p in section.pictures}
    body = el(
        "body",
        el("a", "Skip to the verdict", href="#verdict", class_="skip"),
        el("header", el("p", "driftscope", class_="brand"), _contents(made)),
        el(
            "main",
            first_screen.opening(analysis, _elsewhere(analysis, made), _losses(analysis)),
            el("div", finding_cards.findings(analysis), glossary(), class_="split"),
            [section_html.section(n, s, analysis.warnings) for n, s in enumerate(made, start=2)],
        ),
        el(
            "footer",
            el("p", _FOOTER.format(driftscope.__version__)),
            el("details", el("summary", "Licence of plotly.js"), el("p", asset(LICENCE))),
        ),
        el("p", id="said", class_="hidden", role="status"),
        script_json(figures, id="figures"),
        embedded(analysis),
        Markup(
            f'<script type="text/plain" id="plotly">{base64.b64encode(packed).decode()}</script>'
        ),
        Markup(f"<script>{code}</script>"),
    )
    head = _head(analysis, style, [code, gzip.decompress(packed).decode()])
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _elsewhere(analysis: Analysis, made: list[Section]) -> Markup | None:
    """Return warnings about the run as a whole, which belong to no section."""
    shown = {affected for section in made for affected in section.affects}
    left = [w for w in analysis.warnings if w.affects not in shown and w.id != LOSS]
    return section_html.warning_box(left)


def _losses(analysis: Analysis) -> Markup | None:
    return section_html.warning_box(losses_among(analysis.warnings), "Not everything was recorded:")


_FOOTER = (
    "Made by driftscope {}. Everything is in this file; nothing is fetched. Pictures by plotly.js."
)
LICENCE = "plotly-basic.LICENSE"


def _head(analysis: Analysis, style: str, scripts: list[str]) -> Markup:
    names = listed([*(run.label for run in analysis.runs), *(s.label for s in analysis.senders)])
    return el(
        "head",
        el("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy(style, scripts)}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"Drift report: {names}"),
        Markup(f"<style>{style}</style>"),
    )


def policy(style: str, scripts: list[str]) -> str:
    """Return the Content-Security-Policy, which allows no requests and only these scripts and
    styles.

    Plotly opens an empty style sheet, fills it rule by rule, and sets style attributes.
    """
    known = " ".join(_hash(code) for code in scripts)
    return (
        f"default-src 'none'; script-src {known}; style-src {_hash(style)} {_hash('')}; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def stylesheet() -> str:
    """Return the page's CSS with its palettes."""
    return (
        asset("report.css")
        .replace("/*LIGHT*/", variables(LIGHT))
        .replace("/*DARK*/", variables(DARK))
    )


def script() -> str:
    """Return the page's own script, with the colour scale of the static pictures."""
    return asset("report.js").replace("/*SCALE*/[]", strict_json.dumps(VIRIDIS))


def _contents(made: list[Section]) -> Markup:
    entries = [("verdict", "Verdict"), *((s.id, s.name) for s in made)]
    links = [el("li", el("a", name, href=f"#{where}")) for where, name in entries]
    return el("nav", el("ol", links), aria_label="Sections")


def plotly() -> bytes:
    """Return plotly's smallest bundle that draws these charts, compressed by gzip; the page unpacks
    it. It is compressed once, so that pages have the same bytes on every machine."""
    return (files("driftscope_reports") / "assets" / "plotly-basic.min.js.gz").read_bytes()


def asset(name: str) -> str:
    """Return the text of a file that ships with the package."""
    return (files("driftscope_reports") / "assets" / name).read_text(encoding="utf-8")
