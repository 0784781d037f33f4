"""The analysis inside a report: embedded in the page and read back from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftscope.analysis.figures.side import grouped
from driftscope.analysis.replays.replay_summary import ReplaySummary
from driftscope.analysis.summary.baseline_run import BaselineRun
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary.bounds import MAX_REPORT_BYTES
from driftscope.boundary.file_input import first_line, parse_json, read_text
from driftscope.errors import DamagedTraceError, SchemaVersionError
from driftscope.pipeline import Analysis, conclude
from driftscope.version import __version__
from driftscope_reports.html.record_codec import from_plain, to_plain
from driftscope_reports.markup import Markup, script_json

ELEMENT = "analysis"
"""Id of the element that holds the data."""
MAX_ROWS = 300
"""Most single answers kept of each replay."""
MAX_REQUESTS = 256
"""Most rows kept of each run's rounds by request. Further requests are merged into groups, which
two reports on the same prompts do identically."""
VERSION = 1
"""Data version, raised when older reports can no longer be read."""
_ELEMENT = re.compile(rf'<script type="application/json" id="{ELEMENT}">(?P<text>[^<]*)</script>')


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Parts of an analysis from which findings and verdict are recomputed."""

    runs: tuple[RunSummary, ...]
    senders: tuple[ReplaySummary, ...] = ()
    baseline: RunSummary | None = None
    plain: BaselineRun | None = None
    """The baseline, if it is a run without speculation."""


def embedded(analysis: Analysis) -> Markup:
    """Return the script element with the data."""
    content = {
        "version": VERSION,
        "driftscope_version": __version__,
        "analysis": to_plain(_kept(_bounded(analysis))),
    }
    return script_json(content, id=ELEMENT)


def _kept(analysis: Analysis) -> Kept:
    references = [case.reference for case in analysis.cases if case.reference is not None]
    labels = {run.label for run in analysis.runs}
    return Kept(
        runs=analysis.runs,
        senders=analysis.senders,
        baseline=next((_few(run) for run in references if run.label not in labels), None),
        plain=next((case.plain for case in analysis.cases if case.plain is not None), None),
    )


def _bounded(analysis: Analysis) -> Analysis:
    """Return the analysis with limited detail. Of a replay with many answers the first are kept,
    and all its cells; in a run with many requests their rounds are grouped."""
    return replace(
        analysis,
        runs=tuple(_few(run) for run in analysis.runs),
        senders=tuple(replace(each, rows=each.rows[:MAX_ROWS]) for each in analysis.senders),
    )


def _few(run: RunSummary) -> RunSummary:
    return run if run.side is None else replace(run, side=grouped(run.side, MAX_REQUESTS))


def read_report(path: Path) -> Analysis:
    """Return the analysis embedded in the report at `path`.

    Raises DamagedTraceError or SchemaVersionError.
    """
    content = _content(path)
    version = content.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise SchemaVersionError(
            f"{path}: the report has data version {version}, but this driftscope reads versions up "
            f"to {VERSION}; upgrade driftscope"
        )
    try:
        kept = from_plain(Kept, content["analysis"])
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise DamagedTraceError(
            f"{path}: its data is not in the form that this driftscope writes ({error}); create "
            "the report again from its run directory"
        ) from error
    return conclude(kept.runs, kept.senders, kept.plain or kept.baseline)


def _content(path: Path) -> dict[str, Any]:
    try:
        match = _ELEMENT.search(read_text(path, limit=MAX_REPORT_BYTES))
        content = parse_json(match["text"]) if match else None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedTraceError(f"{path}: not a readable report ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise DamagedTraceError(
            f"{path}: not a driftscope report; give a run directory, or an HTML file written by "
            "`driftscope analyze`"
        )
    return content
