"""The whole analysis: traces in, summaries, findings and verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.analysis.catalogue import findings_of
from driftscope.analysis.finding import Finding
from driftscope.analysis.quality import QualityWarning, warnings_of
from driftscope.analysis.summarise import summarise
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.verdict import verdict_of
from driftscope.trace.reader import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What a report is made of."""

    runs: tuple[RunSummary, ...]
    findings: tuple[Finding, ...]
    """Worst first."""
    warnings: tuple[QualityWarning, ...]
    verdict: tuple[str, ...]
    """Sentences; the first carries the message."""


def analyze(traces: Sequence[Trace], labels: Sequence[str]) -> Analysis:
    """The analysis of `traces`, each called by its label; labels differ from each other.

    Raises MixedTraceError, DamagedTraceError or NoDataError for a trace that cannot be analysed.
    """
    return conclude([summarise(t, label) for t, label in zip(traces, labels, strict=True)])


def conclude(runs: Sequence[RunSummary]) -> Analysis:
    """Findings, warnings and verdict about summaries that are already made."""
    findings = findings_of(runs)
    return Analysis(
        runs=tuple(runs),
        findings=findings,
        warnings=tuple(warning for run in runs for warning in warnings_of(run)),
        verdict=verdict_of(runs, findings),
    )
