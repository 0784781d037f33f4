"""The report as one HTML file, without network or clock: the same runs give the same bytes."""

from __future__ import annotations

from dataclasses import replace

from driftscope.analysis.number_words import listed
from driftscope.findings.finding import note
from driftscope.pipeline import Analysis
from driftscope_reports import conclusions
from driftscope_reports.charts import has_values, plain
from driftscope_reports.model import Picture, Section, section_html
from driftscope_reports.page import Content, framed
from driftscope_reports.sections_compare import compare
from driftscope_reports.sections_inside import confidence, drift, effect
from driftscope_reports.sections_sources import provenance, replays, requests, stories
from driftscope_reports.sections_speed import fallback, speed
from driftscope_reports.sections_where import where

MAX_BYTES = 2_000_000
"""Size limit of the whole file, whatever the run's size."""
_SECTIONS = (drift, effect, confidence, speed, fallback, where, compare, requests)


def to_html(analysis: Analysis, *, command: str | None = None) -> str:
    """Return the page; `command` is the command line that made it, shown at its end."""
    page = _page(analysis, command)
    if len(page.encode()) > MAX_BYTES:
        page = _page(thinned(analysis), command)
    return page


def sections(analysis: Analysis, command: str | None = None) -> list[Section]:
    """Return every section, in the order of the page."""
    of_runs = [make(analysis) for make in _SECTIONS] if analysis.runs else []
    drawn = [
        replace(section, pictures=[p for p in section.pictures if has_values(p.chart)])
        for section in of_runs
    ]
    sent = replays(analysis)
    return [*([sent] if sent else []), *drawn, provenance(analysis, command)]


def pictures(analysis: Analysis) -> list[Picture]:
    """Return every picture of the page, the one of the first screen first."""
    lead = conclusions.lead_picture(analysis)
    rest = [picture for section in sections(analysis) for picture in section.pictures]
    return [*([lead] if lead else []), *rest]


def thinned(analysis: Analysis) -> Analysis:
    """Return `analysis` without the rounds of single requests, for a file that would be too large.
    A note reports the omission."""
    runs = tuple(
        replace(run, closeup=run.closeup and replace(run.closeup, opened=()))
        for run in analysis.runs
    )
    left_out = note(_LEFT_OUT, "This report", name="thinned", affects="requests")
    return replace(analysis, runs=runs, notes=(*analysis.notes, left_out))


_LEFT_OUT = (
    "single requests cannot be opened, to keep the file small; a report of fewer runs shows more"
)


def _page(analysis: Analysis, command: str | None) -> str:
    page_sections = sections(analysis, command)
    shown = {affected for section in page_sections for affected in section.affects}
    notes = [noted for noted in analysis.notes if noted not in analysis.losses]
    lead = conclusions.lead_picture(analysis)
    first = [noted for noted in notes if noted.affects not in shown]
    main = [
        conclusions.opening(analysis, first),
        conclusions.answers(analysis.screen),
        conclusions.findings(analysis),
        *(section_html(section, notes) for section in page_sections),
        conclusions.terms(analysis.runs),
    ]
    drawn = [*([lead] if lead else []), *(p for s in page_sections for p in s.pictures)]
    content = Content(
        title=f"Drift report: {listed(analysis.labels)}",
        skip="Skip to the verdict",
        contents=[
            ("verdict", "Verdict"),
            ("findings", "Findings"),
            *((section.id, section.name) for section in page_sections),
        ],
        main=main,
        figures={picture.id: plain(picture.chart) for picture in drawn},
        stories=stories(analysis.runs),
    )
    return framed(content)
