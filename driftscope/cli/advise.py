"""`driftscope advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.shared.query_engine_option import DUCKDB, EngineOption


def advise(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories; the first is the one advised."),
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A run of the same server without speculation."),
    ] = None,
    engine: EngineOption = DUCKDB,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """Say which K would serve fastest: time per output token for every K and batch size.

    From the step times and the acceptance of the first RUN. Runs of the same models at another K,
    or one without speculation, tell what verification costs by K, which one run cannot.
    """
    from driftscope.analysis.cost.advice import advise as advice_on
    from driftscope.analysis.findings.dead_drafter import is_dead
    from driftscope.analysis.query.record_views import open_run
    from driftscope.analysis.replays.senders import is_replay
    from driftscope.analysis.summary.baseline_run import baseline_of
    from driftscope.analysis.summary.summarise import summarise
    from driftscope.cli.shared.query_engine_option import engine_of
    from driftscope.cli.shared.run_labels import labels_of
    from driftscope.errors import NoDataError
    from driftscope.trace.format.manifest import read_manifest
    from driftscope_reports.terminal import advice_table

    labels = labels_of(runs, None)
    for run in [*runs, *([] if baseline is None else [baseline])]:
        if is_replay(read_manifest(run)):
            raise NoDataError(
                f"{run}: a replay, which has no step times; give the server's own run to advise on"
            )
    first, *others = (
        summarise(open_run(run, engine_of(engine)), label)
        for run, label in zip(runs, labels, strict=True)
    )
    plain = (
        None if baseline is None else baseline_of(open_run(baseline, engine_of(engine)), "baseline")
    )
    advice = advice_on(first, others, plain)
    if advice is None and is_dead(first):
        advice_table.show_dead(first, as_json=as_json)
        return
    if advice is None:
        raise NoDataError(
            f"{runs[0]}: too few step times for a cost model; record 20 or more like steps"
        )
    if as_json:
        typer.echo(advice_table.to_json(advice), nl=False)
    else:
        advice_table.show(advice)
