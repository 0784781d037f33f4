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

    Of two replays: acceptance, time per token and outcomes, condition by condition. Requests are
    paired where both runs answered the same prompts. Every difference has a 95% interval, and all
    of those between probes' runs are tested together (Holm).
    """
    from driftscope.analysis.collect import collect
    from driftscope.analysis.compare import compare as compared
    from driftscope.analysis.tables import open_run
    from driftscope.cli.compare_replays import both_replays, compare_replays
    from driftscope.cli.engine import engine_of
    from driftscope.cli.labels import labels_of
    from driftscope_reports import comparison

    names = labels_of([first, second], label)
    if both_replays(first, second):
        compare_replays([first, second], names, as_json=as_json)
        return
    found = compared(
        collect(open_run(first, engine_of(engine))),
        collect(open_run(second, engine_of(engine))),
        labels=(names[0], names[1]),
    )
    if as_json:
        typer.echo(comparison.to_json(found), nl=False)
        return
    comparison.show(found)
