"""The `driftscope compare` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli import options


def compare(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            help="Run directory to compare with, or the JSON document of an inspection.",
            callback=options.named_run_or_inspection,
            autocompletion=options.runs,
        ),
    ],
    second: Annotated[
        Path,
        typer.Argument(
            metavar="B",
            help="Run directory to compare; an inspection if A is one.",
            callback=options.named_run_or_inspection,
            autocompletion=options.runs,
        ),
    ],
    label: options.NamesOption = None,
    where: options.WhereOption = None,
    cluster: options.ClusterOption = None,
    engine: options.EngineOption = options.DUCKDB,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every figure, also those without a difference.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show how run B differs from run A: acceptance by depth and by workload label.

    If one of them does not speculate, compares the time per output token and the time to first
    token. For two replays, compares acceptance, time per token and outcomes of each condition.
    Requests are paired if both runs answered the same prompts. Every difference has a 95% interval,
    and all differences between probes' runs are tested together (Holm). If A is the document of
    `driftscope inspect --json`, compares B, a run or another drafter's inspection, with the
    acceptance that was measured offline.
    """
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.boundary.text import shown
    from driftscope.cli.screens.replay import both_replays, compare_replays
    from driftscope.errors import UsageError
    from driftscope.json_report import comparison_to_json
    from driftscope.pipeline import compare as compare_runs
    from driftscope.trace.manifest import read_manifest
    from driftscope.trace.reader import losses_of
    from driftscope.trace.runs import is_rollups, labels_of
    from driftscope.trace.status import read_statuses
    from driftscope_reports.terminal import show_comparison

    if where is not None and (options.is_inspection(first) or both_replays(first, second)):
        raise UsageError("--where: only the rows of two run directories of a probe can be chosen")
    if options.is_inspection(first):
        from driftscope.cli.gate_run import compare_with_inspection

        (name,) = labels_of([second], label)
        compare_with_inspection(
            first, second, name, engine=options.maker_of(engine), cluster=cluster, as_json=as_json
        )
        return
    names = labels_of([first, second], label)
    for name, run in zip(names, (first, second), strict=True):
        if is_rollups(run):
            continue
        for loss in losses_of(read_statuses(run), read_manifest(run).lost):
            typer.echo(f"warning: {shown(f'{name}: {loss}')}", err=True)
    if both_replays(first, second):
        compare_replays([first, second], names, as_json=as_json)
        return
    compared = compare_runs(
        first,
        second,
        (names[0], names[1]),
        engine=options.maker_of(engine),
        cluster=cluster,
        only=Filter(where=where),
    )
    if as_json:
        typer.echo(comparison_to_json(compared), nl=False)
    else:
        show_comparison(compared, everything=everything)
