"""Facts that a gate's rules are evaluated on: runs of a probe, and replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

from driftscope.analysis.findings.catalogue_entry import Entry
from driftscope.analysis.findings.finding import Severity
from driftscope.analysis.findings.rules.catalogue import CATALOGUE, REPLAYS
from driftscope.analysis.gate.evaluate import Facts
from driftscope.analysis.replays.senders import ReplaySummary
from driftscope.analysis.summary.baseline_run import BaselineRun
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import UsageError
from driftscope.json_report.report import plain_to_dict, replay_to_dict, run_to_dict
from driftscope.metrics.fallback import UNKNOWN
from driftscope.pipeline import Analysis
from driftscope.vocabulary import UndraftedReason

Baseline: TypeAlias = RunSummary | BaselineRun | ReplaySummary | None
Labelled: TypeAlias = tuple[str, Facts]
_REASONS = frozenset((*UndraftedReason.ALL, UNKNOWN))


class Kind(Enum):
    """Kind of subject that a rule can be about."""

    RUN = "a run of a probe"
    REPLAY = "a replay"

    @property
    def catalogue(self) -> Mapping[str, Entry[Any]]:
        """Findings that can be made about this kind of subject."""
        return CATALOGUE if self is Kind.RUN else REPLAYS


def facts_of(
    analysis: Analysis, baseline: Baseline, correlated: Mapping[str, Mapping[str, float]]
) -> dict[Kind, list[Labelled]]:
    """Return the labelled facts of every run and replay."""
    held = None if baseline is None else _content(baseline)
    is_replay = isinstance(baseline, ReplaySummary)
    return {
        Kind.RUN: [
            (
                case.run.label,
                Facts(
                    run=run_to_dict(case.run),
                    baseline=None if is_replay else held,
                    found=_found(analysis, case.run.label, case, Kind.RUN),
                    countable=_REASONS,
                    correlated=correlated.get(case.run.label, {}),
                ),
            )
            for case in analysis.cases
        ],
        Kind.REPLAY: [
            (
                case.run.label,
                Facts(
                    run=replay_to_dict(case.run),
                    baseline=held if is_replay else None,
                    found=_found(analysis, case.run.label, case, Kind.REPLAY),
                ),
            )
            for case in analysis.replay_cases
        ],
    }


def _content(run: RunSummary | BaselineRun | ReplaySummary) -> dict[str, Any]:
    if isinstance(run, ReplaySummary):
        return replay_to_dict(run)
    return run_to_dict(run) if isinstance(run, RunSummary) else plain_to_dict(run)


def _found(
    analysis: Analysis, label: str, case: object, kind: Kind
) -> Callable[[str], bool | None]:
    """Return a function that tells whether a finding is about the case's run, given a finding's id,
    or a severity for findings that are at least as severe. It returns None if the run lacks the
    data that the finding needs, or if the finding is about another kind of run."""
    mine = [f for f in analysis.findings if f.runs[-1] == label]

    def found(name: str) -> bool | None:
        if name in (Severity.HIGH, Severity.MEDIUM):
            worse = list(Severity)[: list(Severity).index(Severity(name)) + 1]
            return any(f.severity in worse for f in mine)
        if name not in kind.catalogue:
            _check(name)
            return None
        if any(f.id == name for f in mine):
            return True
        return False if kind.catalogue[name].need.met(case) else None

    return found


def _check(name: str) -> None:
    known: Sequence[str] = sorted((*CATALOGUE, *REPLAYS))
    if name not in known:
        raise UsageError(
            f"{name}: no finding is called so; there are {', '.join(known)}, and the severities "
            "high and medium"
        )
