"""Conclusions of analyze, compare, check and advise as JSON documents.

Each document is a record, whose fields other tools may build on.
`driftscope.boundary.json_document` writes it, `driftscope.json_schema` makes its schema from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from driftscope.analysis.advice import NO_SPECULATION, Advice, answer
from driftscope.analysis.baseline_relation import Quantity
from driftscope.analysis.compare import TPOT, Comparison, verdict
from driftscope.analysis.gate import Judgement, RuleResult
from driftscope.analysis.pairing import UNPAIRED
from driftscope.analysis.replays import ReplayComparison, ReplayFigures, ReplaySummary
from driftscope.analysis.statistics.permutation import ALPHA
from driftscope.analysis.summary.run_summary import (
    BaselineRun,
    PlainFigures,
    RunFigures,
    RunSummary,
)
from driftscope.boundary.json_document import (
    ADVICE,
    CHECK,
    COMPARISON,
    REPORT,
    document,
    layout,
    plain,
    text,
)
from driftscope.findings.catalogue import Analysis
from driftscope.findings.causes import none_accepted
from driftscope.findings.finding import Finding
from driftscope.findings.first_screen import KeyFigure, State
from driftscope.version import __version__

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedAction:
    """Action that the first screen advises."""

    id: str
    """Id of the finding that advises it."""
    runs: tuple[str, ...]
    advice: str
    option: str | None
    """Option to paste; null if there is none."""
    cost_tps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownScreen:
    """The first screen, whose findings are listed once, in the report."""

    state: State
    headline: str
    cause: str
    """Finding that badge and first action are about; empty if the headline tells it."""
    actions: tuple[AdvisedAction, ...]
    """Actions, most urgent first."""
    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDocument:
    """The report of an analysis."""

    driftscope_version: str
    """Version that wrote it."""
    verdict: str
    """The first screen as text."""
    first_screen: ShownScreen
    findings: tuple[Finding, ...]
    """Findings that ask for action first, the most expensive first."""
    answers: tuple[Finding, ...]
    """Answers to the questions that are put to every run, by topic."""
    notes: tuple[Finding, ...]
    """Reasons to trust some of the figures less."""
    runs: tuple[RunFigures, ...]
    """Runs of a probe with speculation."""
    plain: PlainFigures | None
    """Run without speculation, the baseline or the only run; null if there is none."""
    replays: tuple[ReplayFigures, ...]
    replays_compared: tuple[ReplayComparison, ...]
    """The first replay compared with each other one that sent the same prompts."""


def to_json(analysis: Analysis) -> str:
    """Return the report as text, with a newline at the end."""
    return layout(to_dict(analysis))


def to_dict(analysis: Analysis) -> dict[str, Any]:
    """Return the report as plain values."""
    return document(
        REPORT,
        ReportDocument(
            driftscope_version=__version__,
            verdict=" ".join(analysis.verdict),
            first_screen=_record_as(
                ShownScreen,
                analysis.screen,
                actions=tuple(
                    _record_as(AdvisedAction, action) for action in analysis.screen.actions
                ),
            ),
            findings=analysis.findings,
            answers=analysis.answers,
            notes=analysis.notes,
            runs=tuple(_record_as(RunFigures, run) for run in analysis.runs),
            plain=_record_as(PlainFigures, analysis.plain) if analysis.plain else None,
            replays=tuple(_record_as(ReplayFigures, run) for run in analysis.senders),
            replays_compared=analysis.versus,
        ),
    )


def figures_of(run: RunSummary | BaselineRun | ReplaySummary) -> dict[str, Any]:
    """Return one run of the report as plain values; a gate evaluates its rules on them. A run
    without speculation has the same keys, with null where it has no figure."""
    if isinstance(run, BaselineRun):
        counts = {"rounds": 0, "k": 0}
        return {
            **{f.name: None for f in fields(RunFigures)},
            **plain(_record_as(PlainFigures, run)),
            **counts,
        }
    figures = RunFigures if isinstance(run, RunSummary) else ReplayFigures
    content: dict[str, Any] = plain(_record_as(figures, run))
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonDocument(Comparison):
    """A comparison of two runs, and what follows from it."""

    verdict: str
    """The comparison in one sentence."""
    correction: str
    """Adjustment of p-values for the number of figures."""
    warning: str | None
    """Why the difference may not be the drafter's; null if nothing else differs."""
    alpha: float
    """Significance level."""


HOLM = "Holm"
JOINT = {True: "max-|t|, signs of pairs drawn", False: "max-|t|, requests dealt anew"}
"""Adjustment of p-values, by whether requests are paired."""


def comparison_to_json(comparison: Comparison) -> str:
    """Return the comparison as text, newline at the end."""
    return text(
        COMPARISON,
        _record_as(
            ComparisonDocument,
            comparison,
            verdict=verdict(comparison),
            correction=HOLM if comparison.at(TPOT) else JOINT[comparison.pairing != UNPAIRED],
            warning=comparison.comparability.warning,
            alpha=ALPHA,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """Outcome of one rule of a gate for one run."""

    rule: str
    name: str | None
    run: str
    outcome: RuleResult
    values: Mapping[str, Quantity | str | None]
    """Figures that decided, by path."""
    because: str | None
    """Reason why nothing can be judged; null if something can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDocument:
    """The outcome of a gate."""

    exit_code: int
    rules: tuple[RuleOutcome, ...]


def check_to_json(judgements: Sequence[Judgement], exit_code: int) -> str:
    """Return every judgement as text, newline at the end."""
    rules = (
        RuleOutcome(
            rule=judgement.rule.text,
            name=judgement.rule.name,
            run=judgement.run,
            outcome=judgement.outcome,
            values=judgement.values,
            because=judgement.because or None,
        )
        for judgement in judgements
    )
    return text(CHECK, GateDocument(exit_code=exit_code, rules=tuple(rules)))


def advice_to_json(advice: Advice) -> str:
    """Return everything as text, newline at the end; null for figures that are not known, and
    `doubt` says why."""
    content = {**plain(advice), "command": advice.command, "answer": answer(advice)}
    return text(ADVICE, _supported(content))


DEAD = "every K costs time and gives nothing"
"""Reason for no speculation where a drafter is dead."""


def dead_to_json(run: RunSummary) -> str:
    """Return the advice on a dead drafter of which too few steps are known for more."""
    why = f"{none_accepted(run)}: {DEAD}"
    content = {"run": run.label, "ran_k": run.k, "command": NO_SPECULATION, "useless": True}
    return text(ADVICE, {**content, "why": why})


def _supported(value: Any) -> Any:
    """Return `value` with null for figures whose interval has no support."""
    if isinstance(value, dict):
        if value.keys() == {"value", "interval"} and value["interval"] is None:
            return {"value": None, "interval": None}
        return {key: _supported(item) for key, item in value.items()}
    return [_supported(item) for item in value] if isinstance(value, list | tuple) else value


def _record_as(kind: type[T], record: Any, **more: Any) -> T:
    """Return a record of class `kind` with the fields that `record` has, and `more`."""
    own = {f.name for f in fields(kind)} - more.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(record, name) for name in own}, **more)
