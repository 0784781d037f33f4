"""The report as one HTML file, without network or clock: the same runs give the same bytes."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TypeVar

from driftscope.analysis.closeup.effect import Effect
from driftscope.analysis.findings.data_quality import LOSS, QualityWarning, losses_among
from driftscope.analysis.number_words import listed
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary import strict_json
from driftscope.pipeline import Analysis
from driftscope.version import __version__
from driftscope_reports.drawing.palette import DARK, LIGHT, VIRIDIS, variables
from driftscope_reports.drawing.plotly_figure import figure
from driftscope_reports.html import finding_cards, first_screen, provenance
from driftscope_reports.html.answers import answers
from driftscope_reports.html.embedded_data import embedded
from driftscope_reports.html.lead_picture import lead_picture
from driftscope_reports.html.parts import section_html
from driftscope_reports.html.parts.section import Picture, Section, in_page
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
from driftscope_reports.html.terms import glossary
from driftscope_reports.markup import Markup, el, encodable, script_json

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
        text = encodable(_page(thinned(analysis, share), command))
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def sections(analysis: Analysis, command: str | None = None) -> list[Section]:
    """Return every section, in the order of the page."""
    made = [make(analysis) for make in _SECTIONS] if analysis.runs else []
    sent = replays.section(analysis)
    return [*([sent] if sent else []), *made, provenance.section(analysis, command)]


def pictures(analysis: Analysis) -> list[Picture]:
    """Return every picture of the page, the one of the first screen first."""
    lead = lead_picture(analysis)
    rest = [picture for section in sections(analysis) for picture in section.pictures]
    return [*([lead] if lead else []), *rest]


def thinned(analysis: Analysis, share: float) -> Analysis:
    """Return `analysis` with this share of the single requests and heads, for a file that would be
    too large. A warning reports the omission."""
    if share >= 1:
        return analysis
    runs = tuple(_thinned(run, share) for run in analysis.runs)
    left_out = QualityWarning(
        id="thinned",
        run="This report",
        affects="requests",
        message=_LEFT_OUT.format(", heads, layers and segments" if share < _HEADS_FROM else ""),
    )
    return replace(analysis, runs=runs, warnings=(*analysis.warnings, left_out))


_LEFT_OUT = (
    "single requests{} are left out to keep the file small; a report of fewer runs shows more"
)
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
    made = [in_page(section) for section in sections(analysis, command)]
    code, packed = script(), plotly()
    style = stylesheet()
    lead, first = lead_picture(analysis), _first_warnings(analysis, made)
    elsewhere = [warning for warning in analysis.warnings if warning not in first]
    drawn = [*([lead] if lead else []), *(p for section in made for p in section.pictures)]
    figures = {p.id: figure(p.chart) for p in drawn}
    body = el(
        "body",
        el("a", "Skip to the verdict", href="#verdict", class_="skip"),
        el("header", el("p", "driftscope", class_="brand"), _contents(made)),
        el(
            "main",
            first_screen.opening(analysis, first, losses_among(analysis.warnings)),
            answers(analysis.screen) if analysis.screen and analysis.screen.claims else None,
            finding_cards.findings(analysis),
            [section_html.section(each, elsewhere) for each in made],
            _terms(analysis.runs),
        ),
        el(
            "footer",
            el("p", _FOOTER.format(__version__)),
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


def _first_warnings(analysis: Analysis, made: list[Section]) -> list[QualityWarning]:
    """Return the warnings of the first screen: on what everything rests on, and those that belong
    to no section."""
    shown = {affected for section in made for affected in section.affects}
    return [
        warning
        for warning in analysis.warnings
        if warning.id != LOSS and (warning.id in _FIRST or warning.affects not in shown)
    ]


def _terms(runs: Sequence[RunSummary]) -> Markup:
    """Return the folded explanation for a reader who meets the terms for the first time."""
    plainly = first_screen.plainly(runs) if runs else None
    return section_html.folded("terms", "New to this?", _NEW, glossary(plainly))


_FIRST = ("unlike", "few_requests", "one_request_decides", "baseline")
"""Ids of the warnings that stand on the first screen, whatever section they affect."""
_NEW = "The terms of this report in plain words."


_FOOTER = (
    "Made by driftscope {}. This file is complete: it loads nothing from the network. Pictures by "
    "plotly.js."
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
    sections = ((each.id, each.name) for each in made)
    entries = [("verdict", "Verdict"), ("findings", "Findings"), *sections]
    links = [el("li", el("a", name, href=f"#{where}")) for where, name in entries]
    return el("nav", el("ol", links), aria_label="Sections")


def plotly() -> bytes:
    """Return plotly's smallest bundle that draws these charts, compressed by gzip; the page unpacks
    it. It is compressed once, so that pages have the same bytes on every machine."""
    return (files("driftscope_reports") / "assets" / "plotly-basic.min.js.gz").read_bytes()


def asset(name: str) -> str:
    """Return the text of a file that ships with the package."""
    return (files("driftscope_reports") / "assets" / name).read_text(encoding="utf-8")
