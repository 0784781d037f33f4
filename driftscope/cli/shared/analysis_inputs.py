"""What `analyze` is given: run directories, and reports whose data is read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope.cli.shared.query_engine_option import DUCKDB

if TYPE_CHECKING:
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.analysis.replays.senders import ReplaySummary
    from driftscope.analysis.summary.run_summary import RunSummary
    from driftscope.pipeline import Analysis

REPORTS = (".html", ".htm")
BASELINE = "baseline"
"""What the run that others are held against is called."""


def is_report(path: Path) -> bool:
    """Whether `path` names a report, not a run directory."""
    return path.suffix.lower() in REPORTS and not path.is_dir()


def analysis_of(
    paths: Sequence[Path],
    labels: Sequence[str],
    *,
    quiet: bool,
    only: Filter | None = None,
    by: str = "label",
    baseline: Path | None = None,
    engine: str = DUCKDB,
) -> Analysis:
    """One analysis of everything in `paths`, called by its label, held against the `baseline`.

    Of run directories, read by `engine`, `only` some rows, and cut `by` what `buckets.BY` names. A
    report alone gives the analysis that it was made of; one of several runs keeps their names in
    brackets after its label. Raises DriftscopeError.
    """
    from driftscope.analysis.query.record_views import open_run
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.analysis.replays.senders import is_replay, summarise_replay
    from driftscope.analysis.summary.baseline_run import baseline_of
    from driftscope.analysis.summary.summarise import summarise
    from driftscope.cli.shared.progress_bar import steps
    from driftscope.cli.shared.query_engine_option import engine_of
    from driftscope.pipeline import conclude
    from driftscope.trace.format.manifest import read_manifest
    from driftscope.trace.read.reader import read_trace
    from driftscope_reports.html.embedded_data import read_report

    if len(paths) == 1 and is_report(paths[0]) and baseline is None:
        return read_report(paths[0])
    summaries: list[RunSummary] = []
    known: list[ReplaySummary] = []
    replays, servers = [], []
    for path, label in steps(list(zip(paths, labels, strict=True)), "analysing", quiet=quiet):
        if is_report(path):
            inside = read_report(path)
            alone = len(inside.runs) + len(inside.senders) == 1
            summaries += [replace(r, label=_named(label, r.label, alone)) for r in inside.runs]
            known += [replace(s, label=_named(label, s.label, alone)) for s in inside.senders]
        elif is_replay(read_manifest(path)):
            replays.append((path, label))
        else:
            summaries.append(
                summarise(open_run(path, engine_of(engine)), label, only=only or Filter(), by=by)
            )
            servers.append(path)
    traces = [read_trace(path) for path in servers] if replays else []
    senders = [summarise_replay(read_trace(path), label, traces) for path, label in replays]
    held = (
        None if baseline is None else baseline_of(open_run(baseline, engine_of(engine)), BASELINE)
    )
    return conclude(summaries, [*known, *senders], held)


def _named(label: str, inside: str, alone: bool) -> str:
    return label if alone else f"{label} ({inside})"
