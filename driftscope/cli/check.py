"""The `driftscope check` command."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli import options


class Undecided(StrEnum):
    """Outcome that an undecided rule counts as."""

    PASS = "pass"  # noqa: S105  no password
    FAIL = "fail"


def check(
    runs: options.RunsArgument,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FINDING|EXPR",
            help="Condition that fails the check: a finding's id (see `driftscope findings`), a "
            "severity, or an expression over a run of the JSON report; repeatable.",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPR",
            help="Expression that must hold, such as 'no_worse(acceptance.mean_length, 5%)'; "
            "repeatable.",
        ),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More rules, from a TOML file.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            callback=options.named_run_or_inspection,
            autocompletion=options.runs,
            help="Run that rules can compare with, through paths that begin with baseline; or the "
            "JSON document of an inspection, which has acceptance alone.",
        ),
    ] = None,
    undecided: Annotated[
        Undecided | None,
        typer.Option(
            help="What an undecided rule counts as, if not as exit 4: pass (exit 0) or fail (exit "
            "3).",
        ),
    ] = None,
    where: options.WhereOption = None,
    cluster: options.ClusterOption = None,
    engine: options.EngineOption = options.DUCKDB,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every rule's outcome as JSON.")
    ] = False,
) -> None:
    """Gate a pipeline on run directories: exit 3 with one line per broken rule.

    A comparison breaks or passes a rule only if its whole 95% interval lies on one side of the
    bound. Otherwise the rule is undecided, as it is if its figures are null: exit 4, unless another
    rule is broken.
    """
    from driftscope.cli.gate_run import outcome, run_gate, show
    from driftscope.errors import EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_OK

    judgements = run_gate(
        runs,
        fail_on or [],
        rules,
        baseline,
        engine,
        require=require or (),
        cluster=cluster,
        where=where,
    )
    counts_as = {None: EXIT_NO_DATA, Undecided.PASS: EXIT_OK, Undecided.FAIL: EXIT_GATE_FAILED}
    code = outcome(judgements, counts_as[undecided])
    show(judgements, code, as_json=as_json)
    if code:
        raise typer.Exit(code)
