"""Run of a gate: read runs and rules, judge, print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.table import Table
from rich.text import Text

from driftscope.analysis.baseline_relation import Quantity, Relation, relation_of
from driftscope.analysis.compare import Comparison, compare_times
from driftscope.analysis.gate import (
    Judgement,
    Rule,
    RuleResult,
    RunFacts,
    judge,
    read_rules,
    rule_of,
)
from driftscope.analysis.query.query_engine import QueryEngine
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.replays import ReplaySummary
from driftscope.analysis.summary.run_summary import BaselineRun, RunSummary
from driftscope.boundary.text import output_console, shown
from driftscope.boundary.text import shown as printable
from driftscope.cli.options import DUCKDB, is_inspection, maker_of, named_run_or_inspection
from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK, NoDataError, UsageError
from driftscope.findings.case import Case, Deciding, Entry
from driftscope.findings.catalogue import CATALOGUE, REPLAYS, no_finding
from driftscope.findings.finding import Finding, Severity, Trust
from driftscope.inspect.compare_run import (
    InspectedAcceptance,
    compare_inspections,
    compare_run,
    figures_like,
    notes_of,
    read_inspection,
    relation_to,
    rounds_like,
    to_json,
)
from driftscope.json_report import check_to_json, figures_of
from driftscope.metrics.fallback import UNKNOWN
from driftscope.pipeline import Analysis, Baseline, Inputs, conclude, measure
from driftscope.trace.manifest import WAS_SIMULATED
from driftscope.trace.runs import labels_of, resolve_run
from driftscope.vocabulary import GATED, UndraftedReason

Labelled: TypeAlias = tuple[str, RunFacts]
NO_ROWS = "cannot tell: no per-request rows, sums only"
_REASONS = frozenset((*UndraftedReason.ALL, UNKNOWN))


class SubjectKind(Enum):
    """Kind of subject that a rule can be about."""

    RUN = "a run recorded by a probe"
    REPLAY = "a replay or another tool's file"

    @property
    def catalogue(self) -> Mapping[str, Entry[Any]]:
        """Findings that can be made about this kind of subject."""
        return CATALOGUE if self is SubjectKind.RUN else REPLAYS


_OF_REPLAYS = {"nothing_accepted": "replay_accepts_nothing"}
"""Findings about a probe's run, and the same about a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFindings:
    """Findings about one run or replay, as rules ask for them."""

    findings: Sequence[Finding]
    case: Any
    kind: SubjectKind

    def has(self, name: str) -> bool | None:
        """Return whether a finding is surely about the case, given a finding's id, or a severity
        for findings that are at least as severe.

        It returns None if noise decides: the interval of the deciding figure contains the bound or,
        without such a figure, the finding's confidence is low. It returns None, too, if the case
        lacks the data that the finding needs, as a replay without rows of requests does, or if the
        finding is about another kind of subject. Raises UsageError for an unknown name.
        """
        if name in GATED:
            return self._surely(self._at_least(name))
        if self.kind is SubjectKind.REPLAY:
            name = _OF_REPLAYS.get(name, name)
        if name not in self.kind.catalogue:
            if name not in {**CATALOGUE, **REPLAYS}:
                raise UsageError(f"{name}: {no_finding(name, GATED)}")
            return None
        figure, made = self._deciding(name), [f for f in self.findings if f.id == name]
        if figure is not None:
            return None if figure.is_open else bool(made)
        if made:
            return self._surely(made)
        return False if self.kind.catalogue[name].need.met(self.case) else None

    def needs(self, name: str) -> str:
        """Return in words what a finding needs and the case lacks; "" if nothing."""
        own = _OF_REPLAYS.get(name, name) if self.kind is SubjectKind.REPLAY else name
        if own in self.kind.catalogue:
            need, figure = self.kind.catalogue[own].need, self._deciding(own)
            if figure is not None and figure.interval is None:
                return "too little is recorded for an interval of its figure"
            return "" if need.met(self.case) else f"it needs {need.words}"
        others = (kind.value for kind in SubjectKind if name in kind.catalogue)
        return next((f"it is about {kind}" for kind in others), "")

    def of_severity(self, name: str) -> list[str]:
        """Return the ids of the findings of a severity or a worse one."""
        return [f.id for f in self._at_least(name)] if name in GATED else []

    def deciding(self, name: str) -> tuple[Quantity, float] | None:
        """Return the figure that decides about a finding, and its bound; None if there is none with
        an interval, or if the case lacks it."""
        figure = self._deciding(name)
        if self.kind is SubjectKind.REPLAY or figure is None or figure.interval is None:
            return None
        low, high = figure.interval.low, figure.interval.high
        return Quantity(value=figure.value, low=low, high=high), figure.bound

    def _deciding(self, name: str) -> Deciding | None:
        entry = self.kind.catalogue.get(name)
        if entry is None or entry.deciding is None or not entry.need.met(self.case):
            return None
        return entry.deciding(self.case)

    def _at_least(self, severity: str) -> list[Finding]:
        order = list(Severity)
        worst = order[: order.index(Severity(severity)) + 1]
        return [f for f in self.findings if f.severity in worst]

    def _surely(self, made: Sequence[Finding]) -> bool | None:
        """Return whether one of these findings is certain; None if there are only uncertain ones,
        or none and the case is a replay without rows of requests, which no rule judges."""
        if any(finding.confidence is not Trust.LOW for finding in made):
            return True
        no_rows = self.kind is SubjectKind.REPLAY and not self.case.run.has_rows
        return None if made or no_rows else False


def facts_of(
    analysis: Analysis,
    baseline: Baseline | InspectedAcceptance | None,
    relations: Mapping[str, Relation],
) -> dict[SubjectKind, list[Labelled]]:
    """Return the labelled facts of every run and replay."""
    before = (
        None
        if baseline is None or isinstance(baseline, InspectedAcceptance)
        else figures_of(baseline)
    )
    is_replay = isinstance(baseline, ReplaySummary)
    out: dict[SubjectKind, list[Labelled]] = {kind: [] for kind in SubjectKind}
    subjects: Mapping[SubjectKind, Sequence[Any]] = {
        SubjectKind.RUN: analysis.cases,
        SubjectKind.REPLAY: analysis.replay_cases,
    }
    for kind, cases in subjects.items():
        for case in cases:
            label, figures = case.run.label, figures_of(case.run)
            run_findings = [f for f in analysis.findings if f.runs[-1] == label]
            findings = CaseFindings(findings=run_findings, case=case, kind=kind)
            facts = RunFacts(
                run=figures,
                baseline=before if is_replay is (kind is SubjectKind.REPLAY) else None,
                has_finding=findings.has,
                made_of=findings.of_severity,
                deciding=findings.deciding,
                needs=findings.needs,
            )
            if kind is SubjectKind.RUN:
                like = (
                    figures_like(figures, baseline)
                    if isinstance(baseline, InspectedAcceptance)
                    else None
                )
                facts = replace(
                    facts,
                    baseline=like or facts.baseline,
                    countable=_REASONS,
                    relation=relations.get(label) or _relation(case, baseline),
                )
            elif not case.run.has_rows:
                facts = replace(facts, lacks=NO_ROWS)
            served = [
                run
                for run in (case.run, baseline)
                if run is not None and not isinstance(run, InspectedAcceptance)
            ]
            simulated = [run.label for run in served if run.manifest.is_simulated]
            if simulated:
                facts = replace(facts, lacks=f"{simulated[0]}: {WAS_SIMULATED}", decides=False)
            out[kind].append((label, facts))
    return out


def _relation(case: Case, baseline: Baseline | InspectedAcceptance | None) -> Relation:
    """Return the relation of a run to a baseline, by the comparisons that `driftscope compare`
    makes."""
    plain = case.plain is not None and case.plain is baseline
    if not plain and (case.reference is None or case.reference is not baseline):
        return Relation()
    reference = case.plain if plain else case.reference
    comparisons = [] if plain or case.comparison is None else [case.comparison]
    if (times := _times(reference, case.run)) is not None:
        comparisons.append(times)
    comparability = case.plain_comparability if plain else case.comparability
    return relation_of(comparisons, comparability.of_requests)


def _times(reference: RunSummary | BaselineRun | None, run: RunSummary) -> Comparison | None:
    """Return the comparison of the times of two runs; None if a run has none."""
    if reference is None or reference.side is None or run.side is None:
        return None
    sides, manifests = (reference.side, run.side), (reference.manifest, run.manifest)
    try:
        return compare_times(sides, manifests, (reference.label, run.label))
    except NoDataError:
        return None


def run_gate(
    runs: Sequence[Path],
    fail_on: Sequence[str],
    rules: Path | None = None,
    baseline: Path | None = None,
    engine: str = DUCKDB,
    *,
    require: Sequence[str] = (),
    cluster: str | None = None,
    where: str | None = None,
) -> list[Judgement]:
    """Evaluate every rule for every run or replay that it can be about. `baseline` is a run or the
    JSON document of an inspection, and `where` a condition on the rows of the runs and of a
    baseline run.

    Raises UsageError for a rule, a condition or an inspection that cannot be read, NoDataError or
    TraceError for a run.
    """
    asked = [rule_of(text) for text in fail_on]
    asked += [rule_of(text, required=True) for text in require]
    asked += read_rules(rules) if rules else []
    if not asked:
        raise UsageError("no rule: give --fail-on FINDING|EXPR, --require EXPR, or --rules FILE")
    labels, inspected = tuple(labels_of(runs, None)), inspection_of(baseline)
    if inspected is not None and where is not None:
        raise UsageError("--where: an inspection has no rows that a condition could keep")
    only = Filter(where=where)
    inputs = Inputs(
        sources=runs,
        labels=labels,
        baseline=None if inspected else baseline,
        only=only,
        baseline_only=only,
        engine=maker_of(engine),
        cluster=cluster,
    )
    measured = measure(inputs)
    if not measured.runs and not measured.replays:
        raise NoDataError(
            f"{runs[0]}: a run without speculation, of which no rule tells anything; give it as "
            "--baseline of a run with speculation"
        )
    analysis = conclude(measured.runs, measured.replays, measured.baseline)
    # Notes with an answer are about what a gate compares: missing rows, runs that differ.
    for note in analysis.notes:
        if note.answer is not None:
            sys.stderr.write(f"{printable(note.line)}\n")
    if inspected is not None:
        relations = relations_to(inspected, inputs)
        return judge_analysis(asked, analysis, inspected, relations)
    return judge_analysis(asked, analysis, measured.baseline)


def judge_analysis(
    rules: Sequence[Rule],
    analysis: Analysis,
    baseline: Baseline | InspectedAcceptance | None = None,
    relations: Mapping[str, Relation] | None = None,
) -> list[Judgement]:
    """Evaluate `rules` for runs that are already analysed; `relations` to a baseline that is no
    run are by label.

    A rule that is the id of a finding is evaluated for the kind of subject that such findings are
    about. Any other rule is evaluated for replays only if there is no run of a probe.
    """
    facts = facts_of(analysis, baseline, relations or {})
    return [
        judgement
        for rule in rules
        for kind, labelled in facts.items()
        if labelled and kind is _asked_of(rule, facts)
        for judgement in judge([rule], labelled)
    ]


def _asked_of(rule: Rule, facts: Mapping[SubjectKind, Sequence[object]]) -> SubjectKind:
    kinds = [kind for kind in SubjectKind if facts[kind]]
    about = kinds
    if rule.finding is not None:
        about = [kind for kind in SubjectKind if rule.finding in kind.catalogue]
    return next((kind for kind in about if kind in kinds), kinds[0])


def outcome(judgements: Sequence[Judgement], undecided: int = EXIT_NO_DATA) -> int:
    """Return the exit code: a broken rule takes precedence over an undecided one, whose exit code
    is `undecided`."""
    outcomes = {judgement.outcome for judgement in judgements}
    if RuleResult.BROKEN in outcomes:
        return EXIT_GATE_FAILED
    return undecided if RuleResult.UNDECIDED in outcomes else EXIT_OK


def show(judgements: Sequence[Judgement], code: int, *, as_json: bool) -> None:
    """Print broken and undecided rules to stdout and a count to stderr; as JSON, print all
    rules and the exit `code`."""
    if as_json:
        sys.stdout.write(check_to_json(judgements, code))
        return
    for judgement in judgements:
        if judgement.outcome is not RuleResult.HELD:
            sys.stdout.write(printable(judgement.line()) + "\n")
    counts = {o: sum(j.outcome is o for j in judgements) for o in RuleResult}
    sys.stderr.write(", ".join(f"{n} {o}" for o, n in counts.items()) + "\n")


def assert_gate(
    runs: Sequence[str | Path],
    fail_on: Sequence[str],
    require: Sequence[str],
    *,
    rules: str | Path | None,
    baseline: str | Path | None,
    undecided: str,
) -> None:
    """Raise AssertionError with the broken rules and, unless `undecided` is "pass", the undecided
    ones. Raises what `run_gate` raises."""
    __tracebackhide__ = True  # pytest then shows the line of the test
    if undecided not in ("pass", "fail"):
        raise UsageError(f'undecided={undecided!r}: give "pass" or "fail"')
    fail_on, require = ([one] if isinstance(one, str) else one for one in (fail_on, require))
    judgements = run_gate(
        [resolve_run(Path(run)) for run in runs],
        fail_on,
        None if rules is None else Path(rules),
        named_run_or_inspection(None if baseline is None else Path(baseline)),
        require=require,
    )
    bad = (RuleResult.BROKEN,) if undecided == "pass" else (RuleResult.BROKEN, RuleResult.UNDECIDED)
    if lines := [
        printable(judgement.line()) for judgement in judgements if judgement.outcome in bad
    ]:
        raise AssertionError("\n".join(lines))


LAST_ROUNDS = (
    "the last rounds of answers are counted, which an inspection leaves out: the run does not hold "
    "where its answers end"
)


def runs_like(
    inspected: InspectedAcceptance, inputs: Inputs
) -> tuple[tuple[RunSummary, ...], tuple[str, ...]]:
    """Return the summaries of the runs, without the last rounds of answers, and notes on how they
    were made. Rounds of requests that did not end are left out, too: where their answers end is not
    known.

    Raises what `driftscope.pipeline.measure` raises.
    """
    try:
        return measure(replace(inputs, only=Filter(where=rounds_like(inspected.k)))).runs, ()
    except NoDataError:
        return measure(inputs).runs, (LAST_ROUNDS,)


def compare_with_inspection(
    document: Path,
    run: Path,
    label: str,
    *,
    engine: Callable[[], QueryEngine],
    cluster: str | None,
    as_json: bool,
) -> None:
    """Print how the acceptance of a run, or of another inspection, differs from an inspection's.

    Raises UsageError for a document that is no inspection, and MixedTraceError for a run that did
    not draft its K.
    """
    inspected = read_inspection(document)
    if is_inspection(run):
        comparison = compare_inspections(inspected, read_inspection(run))
    else:
        inputs = Inputs(sources=[run], labels=[label], engine=engine, cluster=cluster)
        runs, notes = runs_like(inspected, inputs)
        if not runs:
            raise NoDataError(f"{run}: is no run of a probe; record one to compare its acceptance")
        comparison = compare_run(inspected, runs[0], notes)
    if as_json:
        typer.echo(to_json(comparison), nl=False)
        return
    console = output_console(80)
    console.print(Text(f"{shown(comparison.verdict)}."))
    for note in comparison.notes:
        console.print(Text(f"Note: {shown(note)}."))
    names = ("A", "B") if comparison.both_inspected else ("inspection", "run")
    table = Table("", *names, "difference", "95% interval", box=None, pad_edge=False)
    for row in comparison.differences:
        name = "acceptance length" if row.depth is None else f"accepted to depth {row.depth}"
        ends = f"{row.interval.low:+.3f} to {row.interval.high:+.3f}" if row.interval else "–"
        figures = f"{row.promised:.3f}", f"{row.served:.3f}", f"{row.difference:+.3f}"
        table.add_row(name, *figures, ends)
    console.print(table)


def inspection_of(baseline: Path | None) -> InspectedAcceptance | None:
    """Return the inspection that a baseline names; None for a run. Raises UsageError for another
    document."""
    return read_inspection(baseline) if baseline is not None and is_inspection(baseline) else None


def relations_to(inspected: InspectedAcceptance, inputs: Inputs) -> dict[str, Relation]:
    """Return how each run compares with an inspection, by label, over the rounds that the
    inspection makes, too; notes go to stderr.

    Raises NoDataError without a run of a probe, MixedTraceError for one of another K.
    """
    runs, notes = runs_like(inspected, inputs)
    if not runs:
        raise NoDataError(
            "no run of a probe is given: an inspection as baseline has its acceptance alone"
        )
    sys.stderr.write(
        f"baseline: an inspection has acceptance at K = {inspected.k} alone, without the last "
        "rounds of answers, which are left out of the runs, too; rules that need other figures of "
        "a baseline are undecided\n"
    )
    for run in runs:
        for note in (*notes_of(run), *notes):
            sys.stderr.write(f"{shown(f'{run.label}: {note}')}\n")
    return {run.label: relation_to(inspected, run) for run in runs}
