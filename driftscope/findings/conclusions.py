"""Conclusions on summaries: findings, warnings and the first screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from driftscope.analysis.replays import ReplayComparison, ReplaySummary
from driftscope.analysis.run_differences import doubt
from driftscope.analysis.summary.run_summary import BaselineRun, RunSummary
from driftscope.findings.case import Case, ReplayCase, cases_of, replay_cases_of
from driftscope.findings.catalogue import findings_about, findings_about_replay, ranked
from driftscope.findings.finding import Finding
from driftscope.findings.first_screen import FirstScreen, first_screen_of, replay_screen_of
from driftscope.findings.rules_data import QualityWarning, replay_warnings, warnings_of
from driftscope.findings.rules_replays import replay_sentences

Baseline: TypeAlias = RunSummary | BaselineRun | ReplaySummary
"""Summary of a run that others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that a report is made from."""

    runs: tuple[RunSummary, ...]
    cases: tuple[Case, ...]
    """Rule inputs, one case per run, including the advice on K."""
    findings: tuple[Finding, ...]
    """Findings that ask for action first, the most expensive first."""
    warnings: tuple[QualityWarning, ...]
    verdict: tuple[str, ...]
    """Sentences of the first screen; the first one carries the message."""
    screen: FirstScreen | None = None
    """First screen; None without a run."""
    senders: tuple[ReplaySummary, ...] = ()
    """Summaries of the replays."""
    versus: tuple[ReplayComparison, ...] = ()
    """Comparisons of the first replay with each other replay that sent the same prompts."""
    replay_cases: tuple[ReplayCase, ...] = ()
    """Rule inputs, one case per replay."""


def conclude(
    runs: Sequence[RunSummary],
    senders: Sequence[ReplaySummary] = (),
    baseline: Baseline | None = None,
) -> Analysis:
    """Return findings, warnings and first screen for summaries that have already been made.

    The runs are compared with `baseline`, which gets no findings of its own. Without a baseline
    they are compared with the first run.
    """
    of_replays = baseline if isinstance(baseline, ReplaySummary) else None
    of_runs = None if isinstance(baseline, ReplaySummary) else baseline
    replays, cases = replay_cases_of(senders, of_replays), cases_of(runs, of_runs)
    all_findings = [finding for case in cases for finding in findings_about(case)]
    all_findings += [finding for case in replays for finding in findings_about_replay(case)]
    findings = ranked(all_findings)
    screen = first_screen_of(cases, findings) if cases else None
    if screen is None and senders:
        screen = replay_screen_of(senders, findings)
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
        verdict=screen.sentences if screen and cases else replay_sentences(senders),
        screen=screen,
        senders=tuple(senders),
        versus=tuple(pair for case in replays for pair in case.pairs),
        replay_cases=replays,
    )


def _several_things(cases: Sequence[Case]) -> tuple[QualityWarning, ...]:
    """Warn about runs that differ from the run they are compared with in more than their
    drafter."""
    doubts = [(case.comparison, doubt(case.comparison.unlike)) for case in cases if case.comparison]
    return tuple(
        QualityWarning(
            id="unlike",
            run=f"{comparison.first} and {comparison.second}",
            affects="acceptance",
            message=message,
        )
        for comparison, message in doubts
        if message
    )


def _unlike(
    cases: Sequence[Case], baseline: RunSummary | BaselineRun | None
) -> tuple[QualityWarning, ...]:
    """Warn if a baseline without speculation comes from a different server: it is compared with
    nothing."""
    if not isinstance(baseline, BaselineRun) or any(case.plain for case in cases):
        return ()
    message = (
        "it is not used: its engine, runner, execution mode, tensor parallelism or "
        "target model is another one"
    )
    return (QualityWarning(id="baseline", run=baseline.label, affects="speed", message=message),)
