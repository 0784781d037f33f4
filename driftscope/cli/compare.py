"""`driftscope compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.engine import DUCKDB, EngineOption


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
    """Say what sets run B apart from run A: acceptance by depth and by workload label.

    Where one of them does not speculate: times per output token and to the first one. Of two
    replays: acceptance, time per token and outcomes, condition by condition. Requests are
    paired where both runs answered the same prompts. Every difference has a 95% interval, and all
    of those between probes' runs are tested together (Holm).
    """
    from driftscope.analysis.plain import speculates
    from driftscope.analysis.tables import open_run
    from driftscope.cli.compare_replays import both_replays, compare_replays
    from driftscope.cli.engine import engine_of
    from driftscope.cli.labels import labels_of
    from driftscope_reports import comparison

    names = labels_of([first, second], label)
    if both_replays(first, second):
        compare_replays([first, second], names, as_json=as_json)
        return
    a, b = (open_run(run, engine_of(engine)) for run in (first, second))
    labels = (names[0], names[1])
    if speculates(a) and speculates(b):
        from driftscope.analysis.collect import collect
        from driftscope.analysis.compare import compare as compared

        found = compared(collect(a), collect(b), labels)
    else:
        from driftscope.analysis.compare_times import compare_times
        from driftscope.analysis.requests import requests_of

        found = compare_times(requests_of(a), requests_of(b), labels)
    if as_json:
        typer.echo(comparison.to_json(found), nl=False)
        return
    comparison.show(found)
