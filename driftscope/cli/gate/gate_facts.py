"""Facts that a gate's rules are evaluated on: runs of a probe, and replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from driftscope.analysis.baseline_relation import Quantity, Relation
from driftscope.analysis.gate import Facts
from driftscope.analysis.replays import ReplaySummary
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import UsageError
from driftscope.findings.case import Deciding, Entry, ReplayCase
from driftscope.findings.catalogue import CATALOGUE, REPLAYS
from driftscope.findings.finding import Finding, Severity, Trust
from driftscope.inspect.promise import Promise
from driftscope.inspect.promise_baseline import figures_like
from driftscope.json_report.report import plain_to_dict, replay_to_dict, run_to_dict
from driftscope.metrics.fallback import UNKNOWN
from driftscope.pipeline import Analysis, Baseline
from driftscope.vocabulary import GATED, UndraftedReason

Labelled: TypeAlias = tuple[str, Facts]
NO_ROWS = "cannot tell: no per-request rows, sums only"
_REASONS = frozenset((*UndraftedReason.ALL, UNKNOWN))


class Kind(Enum):
    """Kind of subject that a rule can be about."""

    RUN = "a run recorded by a probe"
    REPLAY = "a replay"

    @property
    def catalogue(self) -> Mapping[str, Entry[Any]]:
        """Findings that can be made about this kind of subject."""
        return CATALOGUE if self is Kind.RUN else REPLAYS


def facts_of(
    analysis: Analysis, baseline: Baseline | Promise | None, relations: Mapping[str, Relation]
) -> dict[Kind, list[Labelled]]:
    """Return the labelled facts of every run and replay."""
    replayed = replay_to_dict(baseline) if isinstance(baseline, ReplaySummary) else None
    baseline_of = _baseline_lookup(baseline)
    return {
        Kind.RUN: [
            (
                case.run.label,
                Facts(
                    run=(figures := run_to_dict(case.run)),
                    baseline=baseline_of(figures),
                    has_finding=_finding_lookup(analysis, case.run.label, case, Kind.RUN),
                    made_of=_severity_lookup(analysis, case.run.label),
                    deciding=_quantity_lookup(case, Kind.RUN),
                    countable=_REASONS,
                    relation=relations.get(case.run.label, Relation()),
                ),
            )
            for case in analysis.cases
        ],
        Kind.REPLAY: [
            (
                case.run.label,
                Facts(
                    run=replay_to_dict(case.run),
                    baseline=replayed,
                    has_finding=_of_replay(analysis, case),
                    made_of=_severity_lookup(analysis, case.run.label),
                    lacks="" if case.run.has_rows else NO_ROWS,
                ),
            )
            for case in analysis.replay_cases
        ],
    }


def _baseline_lookup(
    baseline: Baseline | Promise | None,
) -> Callable[[Mapping[str, Any]], dict[str, Any] | None]:
    """Return a function from a run's figures to those of the baseline, with the same keys."""
    if isinstance(baseline, Promise):
        return partial(figures_like, promise=baseline)
    if baseline is None or isinstance(baseline, ReplaySummary):
        return lambda _: None
    figures = run_to_dict(baseline) if isinstance(baseline, RunSummary) else plain_to_dict(baseline)
    return lambda _: figures


def _quantity_lookup(case: object, kind: Kind) -> Callable[[str], tuple[Quantity, float] | None]:
    """Return the same function with figure and bound as the gate reads them."""
    deciding = _deciding_lookup(case, kind)

    def quantity(name: str) -> tuple[Quantity, float] | None:
        figure = deciding(name)
        if figure is None or figure.interval is None:
            return None
        low, high = figure.interval.low, figure.interval.high
        return Quantity(value=figure.value, low=low, high=high), figure.bound

    return quantity


def _deciding_lookup(case: object, kind: Kind) -> Callable[[str], Deciding | None]:
    """Return a function that returns the figure that decides about a finding, given its id; None
    if there is none or the run lacks it."""

    def deciding(name: str) -> Deciding | None:
        entry = kind.catalogue.get(name)
        return entry.deciding(case) if entry and entry.need.met(case) else None

    return deciding


def _finding_lookup(
    analysis: Analysis, label: str, case: object, kind: Kind
) -> Callable[[str], bool | None]:
    """Return a function that tells whether a finding is surely about the case's run, given a
    finding's id, or a severity for findings that are at least as severe.

    It returns None if noise decides: the interval of the deciding figure contains the bound or,
    without such a figure, the finding's confidence is low. It returns None, too, if the run lacks
    the data that the finding needs, or if the finding is about another kind of run.
    """
    mine = _about(analysis, label)
    deciding = _deciding_lookup(case, kind)

    def has_finding(name: str) -> bool | None:
        if (wanted := _severity(name)) is not None:
            return _surely([f for f in mine if f.severity in wanted])
        if name not in kind.catalogue:
            _check(name)
            return None
        figure, made = deciding(name), [f for f in mine if f.id == name]
        if figure is not None:
            return None if figure.is_open else bool(made)
        return _surely(made) if made or kind.catalogue[name].need.met(case) else None

    return has_finding


def _of_replay(analysis: Analysis, case: ReplayCase) -> Callable[[str], bool | None]:
    """Return the lookup of findings about a replay. One without rows of requests is judged by no
    rule, so that the absence of findings says nothing."""
    has_finding = _finding_lookup(analysis, case.run.label, case, Kind.REPLAY)
    if case.run.has_rows:
        return has_finding
    return lambda name: has_finding(name) or None


def _severity_lookup(analysis: Analysis, label: str) -> Callable[[str], list[str]]:
    """Return a function that returns the ids of the findings of a severity or a worse one."""
    mine = _about(analysis, label)

    def made_of(name: str) -> list[str]:
        return [f.id for f in mine if f.severity in (_severity(name) or ())]

    return made_of


def _about(analysis: Analysis, label: str) -> list[Finding]:
    return [f for f in analysis.findings if f.runs[-1] == label]


def _severity(name: str) -> tuple[Severity, ...] | None:
    """Return the severity called `name` and those that are worse; None for any other name."""
    if name not in GATED:
        return None
    return tuple(list(Severity)[: list(Severity).index(Severity(name)) + 1])


def _surely(made: Sequence[Finding]) -> bool | None:
    """Return whether one of these findings is certain; None if there are only uncertain ones."""
    if any(finding.confidence is not Trust.LOW for finding in made):
        return True
    return None if made else False


def _check(name: str) -> None:
    known: Sequence[str] = sorted((*CATALOGUE, *REPLAYS))
    if name not in known:
        raise UsageError(
            f"{name}: unknown finding; known are {', '.join(known)}, and the severities "
            f"{' and '.join(GATED)}"
        )
