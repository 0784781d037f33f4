"""Implementation of `check`: read runs and rules, judge, print."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from driftscope.analysis.baseline_relation import Relation, relation_of
from driftscope.analysis.gate import (
    FindingCondition,
    Judgement,
    Outcome,
    Rule,
    judge,
    read_rules,
    rule_of,
)
from driftscope.analysis.query.row_filters import Filter
from driftscope.cli.gate.gate_facts import Kind, facts_of
from driftscope.cli.shared.analysis_options import DUCKDB
from driftscope.cli.shared.inspection_baseline import promise_of, relations_to
from driftscope.cli.shared.run_argument import named_run_or_inspection
from driftscope.cli.shared.run_choice import RunChoice
from driftscope.cli.shared.run_labels import labels_of
from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK, UsageError
from driftscope.findings.rules_data import LOSS
from driftscope.inspect.promise import Promise
from driftscope.json_report.check import to_json
from driftscope.pipeline import Analysis, Baseline, conclude
from driftscope.trace.runs.run_folder import found
from driftscope_reports.terminal.run_table import plain as printable

_GUARDS = ("unlike", "baseline", LOSS)
"""Warnings about what a gate compares: runs that differ, a baseline that is not used, missing
rows."""


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
    labels, promise = tuple(labels_of(runs, None)), promise_of(baseline)
    if promise is not None and where is not None:
        raise UsageError("--where: an inspection has no rows that a condition could keep")
    only = Filter(where=where)
    choice = RunChoice(
        paths=tuple(runs),
        labels=labels,
        baseline=None if promise else baseline,
        only=only,
        baseline_only=only,
        engine=engine,
        cluster=cluster,
    )
    measured = choice.measured()
    analysis = conclude(measured.runs, measured.replays, measured.baseline)
    for warning in analysis.warnings:
        if warning.id in _GUARDS:
            sys.stderr.write(f"{printable(f'{warning.run}: {warning.message}')}\n")
    if promise is not None:
        relations = relations_to(promise, choice.inputs())
        return judge_analysis(asked, analysis, promise, relations)
    reference = measured.baseline_sums
    relations = {
        label: relation_of(sums, reference) for label, sums in measured.sums.items() if reference
    }
    return judge_analysis(asked, analysis, measured.baseline, relations)


def judge_analysis(
    rules: Sequence[Rule],
    analysis: Analysis,
    baseline: Baseline | Promise | None = None,
    relations: Mapping[str, Relation] | None = None,
) -> list[Judgement]:
    """Evaluate `rules` for runs that are already analysed; `relations` to the baseline
    are by label.

    A rule that is the id of a finding is evaluated for the kind of subject that such findings are
    about. Any other rule is evaluated for replays only if there is no run of a probe.
    """
    facts = facts_of(analysis, baseline, relations or {})
    return [
        judgement
        for rule in rules
        for kind, mine in facts.items()
        if mine and kind is _asked_of(rule, facts)
        for judgement in judge([rule], mine)
    ]


def _asked_of(rule: Rule, facts: Mapping[Kind, Sequence[object]]) -> Kind:
    there = [kind for kind in Kind if facts[kind]]
    about = there
    if isinstance(rule.condition, FindingCondition):
        about = [kind for kind in Kind if rule.condition.name in kind.catalogue]
    return next((kind for kind in about if kind in there), there[0])


def outcome(judgements: Sequence[Judgement], undecided: int = EXIT_NO_DATA) -> int:
    """Return the exit code: a broken rule takes precedence over an undecided one, whose exit code
    is `undecided`."""
    outcomes = {judgement.outcome for judgement in judgements}
    if Outcome.BROKEN in outcomes:
        return EXIT_GATE_FAILED
    return undecided if Outcome.UNDECIDED in outcomes else EXIT_OK


def show(judgements: Sequence[Judgement], code: int, *, as_json: bool) -> None:
    """Print broken and undecided rules to stdout and a count to stderr; as JSON, print all
    rules and the exit `code`."""
    if as_json:
        sys.stdout.write(to_json(judgements, code))
        return
    for judgement in judgements:
        if judgement.outcome is not Outcome.HELD:
            sys.stdout.write(printable(judgement.line()) + "\n")
    counts = {o: sum(j.outcome is o for j in judgements) for o in Outcome}
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
    if undecided not in ("pass", "fail"):
        raise UsageError(f'undecided={undecided!r}: give "pass" or "fail"')
    judgements = run_gate(
        [found(Path(run)) for run in runs],
        fail_on,
        None if rules is None else Path(rules),
        named_run_or_inspection(None if baseline is None else Path(baseline)),
        require=require,
    )
    bad = (Outcome.BROKEN,) if undecided == "pass" else (Outcome.BROKEN, Outcome.UNDECIDED)
    if lines := [printable(each.line()) for each in judgements if each.outcome in bad]:
        raise AssertionError("\n".join(lines))
