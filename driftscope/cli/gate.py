"""What `check` does: reads runs and rules, judges, prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from driftscope.analysis.analyze import Analysis, conclude
from driftscope.analysis.case import Case
from driftscope.analysis.catalogue import CATALOGUE
from driftscope.analysis.collect import Sums, collect
from driftscope.analysis.finding import Severity
from driftscope.analysis.gate.correlation import correlations
from driftscope.analysis.gate.evaluate import Facts
from driftscope.analysis.gate.judge import Judgement, Outcome, judge
from driftscope.analysis.gate.rule import Rule, read_rules, rule_of
from driftscope.analysis.plain import PlainRun, baseline_of
from driftscope.analysis.summarise import summarise
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.tables import open_run
from driftscope.cli.engine import DUCKDB, engine_of
from driftscope.cli.labels import labels_of
from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK, NoDataError, UsageError
from driftscope.metrics.fallback import UNKNOWN
from driftscope.trace.records import UndraftedReason
from driftscope_reports.summary_json import plain_to_dict, run_to_dict
from driftscope_reports.terminal import plain as printable

_REASONS = frozenset((*UndraftedReason.ALL, UNKNOWN))


def run_gate(
    runs: Sequence[Path],
    fail_on: Sequence[str],
    rules: Path | None,
    baseline: Path | None,
    engine: str = DUCKDB,
) -> list[Judgement]:
    """Every rule asked of every run.

    Raises UsageError for a rule that cannot be read, NoDataError or TraceError for a run.
    """
    asked = [rule_of(text) for text in fail_on] + (read_rules(rules) if rules else [])
    if not asked:
        raise UsageError("no rule: give --fail-on FINDING|EXPR, or --rules FILE")
    labels = labels_of(runs, None)
    held, held_sums = _baseline(baseline, engine)
    sums = [collect(open_run(run, engine_of(engine))) for run in runs]
    summaries = [summarise(run, label) for run, label in zip(sums, labels, strict=True)]
    correlated = [correlations(run, held_sums) if held_sums else {} for run in sums]
    return judge_analysis(asked, conclude(summaries, baseline=held), held, correlated)


def _baseline(run: Path | None, engine: str) -> tuple[RunSummary | PlainRun | None, Sums | None]:
    """The baseline, and its sums where it speculates."""
    if run is None:
        return None, None
    tables = open_run(run, engine_of(engine))
    try:
        sums = collect(tables)
    except NoDataError:
        return baseline_of(tables, "baseline"), None
    return summarise(sums, "baseline"), sums


def judge_analysis(
    rules: Sequence[Rule],
    analysis: Analysis,
    baseline: RunSummary | PlainRun | None,
    correlated: Sequence[Mapping[str, float]] = (),
) -> list[Judgement]:
    """The same of runs that are already analysed; `correlated` of each, see `Facts`."""
    held = None if baseline is None else _content(baseline)
    facts = [
        (
            case.run.label,
            Facts(
                run=run_to_dict(case.run),
                baseline=held,
                found=_found(analysis, case),
                countable=_REASONS,
                correlated=same,
            ),
        )
        for case, same in zip(analysis.cases, correlated or repeat({}), strict=False)
    ]
    return judge(rules, facts)


def outcome(judgements: Sequence[Judgement]) -> int:
    """The exit code: a broken rule goes before one that could not be decided."""
    outcomes = {judgement.outcome for judgement in judgements}
    if Outcome.BROKEN in outcomes:
        return EXIT_GATE_FAILED
    return EXIT_NO_DATA if Outcome.UNDECIDED in outcomes else EXIT_OK


def show(judgements: Sequence[Judgement], *, as_json: bool) -> None:
    """Broken and undecided rules on stdout, a count on stderr; as JSON all of them."""
    if as_json:
        content = {"schema_version": 1, "exit_code": outcome(judgements),
                   "rules": [_plain(judgement) for judgement in judgements]}  # fmt: skip
        sys.stdout.write(json.dumps(content, indent=1, sort_keys=True) + "\n")
        return
    for judgement in judgements:
        if judgement.outcome is not Outcome.HELD:
            sys.stdout.write(printable(judgement.line()) + "\n")
    counts = {o: sum(j.outcome is o for j in judgements) for o in Outcome}
    sys.stderr.write(", ".join(f"{n} {o}" for o, n in counts.items()) + "\n")


def _content(run: RunSummary | PlainRun) -> dict[str, Any]:
    return run_to_dict(run) if isinstance(run, RunSummary) else plain_to_dict(run)


def _found(analysis: Analysis, case: Case) -> Callable[[str], bool | None]:
    """Whether a finding, or one of a severity or worse, is about the case's run."""
    mine = [f for f in analysis.findings if f.runs[-1] == case.run.label]

    def found(name: str) -> bool | None:
        if name in (Severity.HIGH, Severity.MEDIUM):
            worse = list(Severity)[: list(Severity).index(Severity(name)) + 1]
            return any(f.severity in worse for f in mine)
        if name not in CATALOGUE:
            raise UsageError(
                f"{name}: no finding is called so; there are {', '.join(sorted(CATALOGUE))}, and "
                "the severities high and medium"
            )
        if any(f.id == name for f in mine):
            return True
        return False if CATALOGUE[name].need.met(case) else None

    return found


def _plain(judgement: Judgement) -> dict[str, Any]:
    values = {path: asdict(v) if is_dataclass(v) else v for path, v in judgement.values.items()}
    return {
        "rule": judgement.rule.text,
        "name": judgement.rule.name,
        "run": judgement.run,
        "outcome": judgement.outcome.value,
        "values": values,
    }
