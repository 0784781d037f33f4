"""The `driftscope compare` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.shared.query_engine_option import DUCKDB, EngineOption


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Run directory to compare with.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Run directory to compare.")],
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of a run, once per run; default: directory name."),
    ] = None,
    engine: EngineOption = DUCKDB,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show how run B differs from run A: acceptance by depth and by workload label.

    If one of them does not speculate, compares the time per output token and the time to the first
    token. For two replays, compares acceptance, time per token and outcomes of each condition.
    Requests are paired where both runs answered the same prompts. Every difference has a 95%
    interval, and all differences between probes' runs are tested together (Holm).
    """
    from driftscope.analysis.query.record_views import open_run
    from driftscope.analysis.summary.baseline_run import speculates
    from driftscope.cli.shared.query_engine_option import engine_of
    from driftscope.cli.shared.replay_comparison import both_replays, compare_replays
    from driftscope.cli.shared.run_labels import labels_of
    from driftscope.json_report.comparison import to_json
    from driftscope_reports.terminal import comparison

    names = labels_of([first, second], label)
    if both_replays(first, second):
        compare_replays([first, second], names, as_json=as_json)
        return
    a, b = (open_run(run, engine_of(engine)) for run in (first, second))
    labels = (names[0], names[1])
    if speculates(a) and speculates(b):
        from driftscope.analysis.compare.run_comparison import compare as compared
        from driftscope.analysis.figures.run_sums import collect

        found = compared(collect(a), collect(b), labels)
    else:
        from driftscope.analysis.compare.time_comparison import compare_times
        from driftscope.analysis.figures.request_codes import requests_of

        found = compare_times(requests_of(a), requests_of(b), labels)
    if as_json:
        typer.echo(to_json(found), nl=False)
        return
    comparison.show(found)
