"""What `check` does: reads runs and rules, judges, prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from driftscope.analysis.figures.run_sums import Sums, collect
from driftscope.analysis.gate.correlation import correlations
from driftscope.analysis.gate.expression import Found
from driftscope.analysis.gate.judge import Judgement, Outcome, judge
from driftscope.analysis.gate.rule import Rule, read_rules, rule_of
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.replays.senders import ReplaySummary, is_replay, summarise_replay
from driftscope.analysis.summary.baseline_run import BaselineRun, baseline_of
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.summarise import summarise
from driftscope.boundary import strict_json
from driftscope.cli.shared.analysis_inputs import BASELINE
from driftscope.cli.shared.gate_facts import Baseline, Kind, facts_of
from driftscope.cli.shared.query_engine_option import DUCKDB, engine_of
from driftscope.cli.shared.run_labels import labels_of
from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK, NoDataError, UsageError
from driftscope.pipeline import Analysis, conclude
from driftscope.trace.format.manifest import read_manifest
from driftscope.trace.read.reader import read_trace
from driftscope_reports.terminal.run_table import plain as printable


def run_gate(
    runs: Sequence[Path],
    fail_on: Sequence[str],
    rules: Path | None,
    baseline: Path | None,
    engine: str = DUCKDB,
) -> list[Judgement]:
    """Every rule asked of every run, or replay, that it may be about.

    Raises UsageError for a rule that cannot be read, NoDataError or TraceError for a run.
    """
    asked = [rule_of(text) for text in fail_on] + (read_rules(rules) if rules else [])
    if not asked:
        raise UsageError("no rule: give --fail-on FINDING|EXPR, or --rules FILE")
    named = list(zip(runs, labels_of(runs, None), strict=True))
    replays = {run for run in [*runs, *([baseline] if baseline else [])] if _is_replay(run)}
    held, held_sums = _baseline(None if baseline in replays else baseline, engine)
    sums = {
        label: collect(open_run(run, engine_of(engine)))
        for run, label in named
        if run not in replays
    }
    servers = [read_trace(run) for run in runs if run not in replays] if replays else []
    senders = [
        summarise_replay(read_trace(run), label, servers) for run, label in named if run in replays
    ]
    if baseline in replays and baseline is not None:
        held = summarise_replay(read_trace(baseline), BASELINE)
    summaries = [summarise(run, label) for label, run in sums.items()]
    correlated = {
        label: correlations(run, held_sums) for label, run in sums.items() if held_sums is not None
    }
    analysis = conclude(summaries, senders, held)
    for warning in analysis.warnings:
        if warning.id == "unlike":
            sys.stderr.write(f"{printable(f'{warning.run}: {warning.message}')}\n")
    return judge_analysis(asked, analysis, held, correlated)


def judge_analysis(
    rules: Sequence[Rule],
    analysis: Analysis,
    baseline: Baseline = None,
    correlated: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Judgement]:
    """The same of runs that are already analysed; `correlated` by label, see `Facts`.

    A rule that is the id of a finding is asked of what such findings are about, and any other of
    replays only where there is no run of a probe.
    """
    facts = facts_of(analysis, baseline, correlated or {})
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
    if isinstance(rule.condition, Found):
        about = [kind for kind in Kind if rule.condition.name in kind.catalogue]
    return next((kind for kind in about if kind in there), there[0])


def _is_replay(run: Path) -> bool:
    return is_replay(read_manifest(run))


def _baseline(
    run: Path | None, engine: str
) -> tuple[RunSummary | BaselineRun | ReplaySummary | None, Sums | None]:
    """The baseline, and its sums where it speculates."""
    if run is None:
        return None, None
    tables = open_run(run, engine_of(engine))
    try:
        sums = collect(tables)
    except NoDataError:
        return baseline_of(tables, BASELINE), None
    return summarise(sums, BASELINE), sums


def outcome(judgements: Sequence[Judgement]) -> int:
    """The exit code: a broken rule goes before one that could not be decided."""
    outcomes = {judgement.outcome for judgement in judgements}
    if Outcome.BROKEN in outcomes:
        return EXIT_GATE_FAILED
    return EXIT_NO_DATA if Outcome.UNDECIDED in outcomes else EXIT_OK


def show(judgements: Sequence[Judgement], *, as_json: bool) -> None:
    """Broken and undecided rules on stdout, a count on stderr; as JSON all of them."""
    if as_json:
        content = {
            "schema_version": 1,
            "exit_code": outcome(judgements),
            "rules": [_plain(judgement) for judgement in judgements],
        }
        sys.stdout.write(strict_json.dumps(content, indent=1, sort_keys=True) + "\n")
        return
    for judgement in judgements:
        if judgement.outcome is not Outcome.HELD:
            sys.stdout.write(printable(judgement.line()) + "\n")
    counts = {o: sum(j.outcome is o for j in judgements) for o in Outcome}
    sys.stderr.write(", ".join(f"{n} {o}" for o, n in counts.items()) + "\n")


def _plain(judgement: Judgement) -> dict[str, Any]:
    values = {path: asdict(v) if is_dataclass(v) else v for path, v in judgement.values.items()}
    return {
        "rule": judgement.rule.text,
        "name": judgement.rule.name,
        "run": judgement.run,
        "outcome": judgement.outcome.value,
        "values": values,
    }
