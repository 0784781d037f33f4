"""The report as one HTML file, without network or clock: the same runs give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from markupsafe import Markup

from driftscope.analysis.closeup import Effect
from driftscope.analysis.number_words import listed
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import note
from driftscope.pipeline import Analysis
from driftscope_reports.html import conclusions
from driftscope_reports.html.lead_picture import lead_picture
from driftscope_reports.html.terms import glossary
from driftscope_reports.model import Picture, Section, figures_of, section_html
from driftscope_reports.page import Content, framed, part
from driftscope_reports.sections_compare import compare
from driftscope_reports.sections_inside import drift, effect
from driftscope_reports.sections_sources import provenance, replays, requests, stories
from driftscope_reports.sections_speed import fallback, speed
from driftscope_reports.sections_where import where

MAX_BYTES = 2_000_000
"""Size limit of the whole file, whatever the run's size."""
_SECTIONS = (drift, effect, speed, fallback, where, compare, requests)
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
    sent = replays(analysis)
    return [*([sent] if sent else []), *made, provenance(analysis, command)]


def pictures(analysis: Analysis) -> list[Picture]:
    """Return every picture of the page, the one of the first screen first."""
    lead = lead_picture(analysis)
    rest = [picture for section in sections(analysis) for picture in section.pictures]
    return [*([lead] if lead else []), *rest]


def thinned(analysis: Analysis, share: float) -> Analysis:
    """Return `analysis` with this share of the single requests and heads, for a file that would be
    too large. A note reports the omission."""
    if share >= 1:
        return analysis
    runs = tuple(_thinned(run, share) for run in analysis.runs)
    parts = ", heads, layers and segments" if share < _HEADS_FROM else ""
    left_out = note(_LEFT_OUT.format(parts), "This report", name="thinned", affects="requests")
    return replace(analysis, runs=runs, notes=(*analysis.notes, left_out))


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
    made = sections(analysis, command)
    shown = {affected for section in made for affected in section.affects}
    notes = [each for each in analysis.notes if each not in analysis.losses]
    lead, first = lead_picture(analysis), [each for each in notes if each.affects not in shown]
    main = [
        conclusions.opening(analysis, first),
        conclusions.answers(analysis.screen),
        conclusions.findings(analysis),
        *(section_html(section, notes) for section in made),
        _terms(analysis.runs),
    ]
    content = Content(
        title=_title(analysis),
        skip="Skip to the verdict",
        contents=_contents(made),
        main=main,
        figures=figures_of([*([lead] if lead else []), *(p for s in made for p in s.pictures)]),
        stories=stories(analysis.runs),
    )
    return framed(content)


def _terms(runs: Sequence[RunSummary]) -> Markup:
    """Return the folded explanation for a reader who meets the terms for the first time."""
    plainly = conclusions.plainly(runs) if runs else None
    return part("fold", "terms", "New to this?", _NEW, glossary(plainly))


_NEW = "The terms of this report in plain words."


def _title(analysis: Analysis) -> str:
    names = listed([*(run.label for run in analysis.runs), *(s.label for s in analysis.senders)])
    return f"Drift report: {names}"


def _contents(made: list[Section]) -> list[tuple[str, str]]:
    sections = ((each.id, each.name) for each in made)
    return [("verdict", "Verdict"), ("findings", "Findings"), *sections]
