"""The whole analysis: traces in, summaries, findings and verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.analysis.compare.run_differences import doubt
from driftscope.analysis.findings.data_quality import QualityWarning, replay_warnings, warnings_of
from driftscope.analysis.findings.finding import Finding
from driftscope.analysis.findings.finding_inputs import Case, ReplayCase, cases_of, replay_cases_of
from driftscope.analysis.findings.rules.catalogue import (
    findings_about,
    findings_about_replay,
    ranked,
)
from driftscope.analysis.findings.verdict import replay_verdict, verdict_of
from driftscope.analysis.replays.senders import (
    ReplayComparison,
    ReplaySummary,
    is_replay,
    summarise_replay,
)
from driftscope.analysis.summary.baseline_run import BaselineRun
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.summarise import summarise
from driftscope.trace.read.reader import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What a report is made of."""

    runs: tuple[RunSummary, ...]
    cases: tuple[Case, ...]
    """One per run: with what its rules were asked, the advice on K included."""
    findings: tuple[Finding, ...]
    """What asks for action first, dearest first."""
    warnings: tuple[QualityWarning, ...]
    verdict: tuple[str, ...]
    """Sentences; the first carries the message."""
    senders: tuple[ReplaySummary, ...] = ()
    """Replays."""
    versus: tuple[ReplayComparison, ...] = ()
    """The first replay against each other one that asked the same prompts."""
    replay_cases: tuple[ReplayCase, ...] = ()
    """One per replay."""


def analyze(traces: Sequence[Trace], labels: Sequence[str]) -> Analysis:
    """The analysis of `traces`, each called by its label; labels differ from each other.

    Raises MixedTraceError, DamagedTraceError or NoDataError for a trace that cannot be analysed.
    """
    named = list(zip(traces, labels, strict=True))
    servers = [(trace, label) for trace, label in named if not is_replay(trace.manifest)]
    sent = [(trace, label) for trace, label in named if is_replay(trace.manifest)]
    return conclude(
        [summarise(trace, label) for trace, label in servers],
        [summarise_replay(trace, label, [t for t, _ in servers]) for trace, label in sent],
    )


def conclude(
    runs: Sequence[RunSummary],
    senders: Sequence[ReplaySummary] = (),
    baseline: RunSummary | BaselineRun | ReplaySummary | None = None,
) -> Analysis:
    """Findings, warnings and verdict about summaries that are already made.

    `baseline` is not spoken about, and what the runs are held against; without one that is the
    first of them.
    """
    of_replays = baseline if isinstance(baseline, ReplaySummary) else None
    of_runs = None if isinstance(baseline, ReplaySummary) else baseline
    replays, cases = replay_cases_of(senders, of_replays), cases_of(runs, of_runs)
    found = [finding for case in cases for finding in findings_about(case)]
    found += [finding for case in replays for finding in findings_about_replay(case)]
    findings = ranked(found)
    return Analysis(
        runs=tuple(runs),
        cases=cases,
        findings=findings,
        warnings=(
            *(warning for run in runs for warning in warnings_of(run)),
            *(warning for run in senders for warning in replay_warnings(run)),
            *_unlike(cases, of_runs),
            *_several_things(cases),
        ),
        verdict=verdict_of(runs, findings) if runs else replay_verdict(senders),
        senders=tuple(senders),
        versus=tuple(pair for case in replays for pair in case.pairs),
        replay_cases=replays,
    )


def _several_things(cases: Sequence[Case]) -> tuple[QualityWarning, ...]:
    """Runs that differ from what they are compared with in more than their drafter."""
    said = [(case.comparison, doubt(case.comparison.unlike)) for case in cases if case.comparison]
    return tuple(
        QualityWarning(
            id="unlike",
            run=f"{found.first} and {found.second}",
            affects="acceptance",
            message=message,
        )
        for found, message in said
        if message
    )


def _unlike(
    cases: Sequence[Case], baseline: RunSummary | BaselineRun | None
) -> tuple[QualityWarning, ...]:
    """Nothing is held against a run without speculation of another server: that is said."""
    if not isinstance(baseline, BaselineRun) or any(case.plain for case in cases):
        return ()
    said = (
        "nothing is held against it: its engine, runner, execution mode, tensor parallelism or "
        "target model is another one"
    )
    return (QualityWarning(id="baseline", run=baseline.label, affects="speed", message=said),)
