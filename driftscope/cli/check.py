"""The `driftscope check` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.shared.query_engine_option import DUCKDB, EngineOption


def check(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FINDING|EXPR",
            help="What must not be: a finding's id (see `driftscope findings`), a severity, or an "
            "expression over a run of the JSON report; repeatable.",
        ),
    ] = None,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More rules, from a TOML file.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Run that rules may compare with: paths that begin with baseline."
        ),
    ] = None,
    engine: EngineOption = DUCKDB,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every rule's outcome as JSON.")
    ] = False,
) -> None:
    """Gate a pipeline on run directories: exit 3 with one line per broken rule.

    A comparison breaks a rule only if it holds over the whole 95% interval, so that noise does not
    break it. A rule whose figures are null is undecided: exit 4 (no data), unless another rule is
    broken.
    """
    from driftscope.cli.shared.gate_run import outcome, run_gate, show

    judgements = run_gate(runs, fail_on or [], rules, baseline, engine)
    show(judgements, as_json=as_json)
    if code := outcome(judgements):
        raise typer.Exit(code)
