"""The `driftscope advise` command."""

from __future__ import annotations

from typing import Annotated

import typer

from driftscope.cli import options


def advise(
    runs: options.RunsArgument,
    baseline: options.BaselineOption = None,
    cluster: options.ClusterOption = None,
    engine: options.EngineOption = options.DUCKDB,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """Say which K serves the first run fastest, or which one to measure next, and the times of all.

    A K is advised only if it was measured or is surely within 5% of the fastest. Further runs of
    the same models at another K, or without speculation, are measured times of theirs.
    `driftscope pays MODEL -k 2,4,8` records them in turn. Exits 4 if the recording tells nothing
    about any K.
    """
    from driftscope.analysis.advice import advise as advice_on
    from driftscope.analysis.advice import left_out_because
    from driftscope.analysis.replays import ReplaySummary
    from driftscope.analysis.summary.run_summary import cuts_by_confidence
    from driftscope.boundary.text import shown as printable
    from driftscope.errors import EXIT_NO_DATA, NoDataError
    from driftscope.findings.causes import is_dead
    from driftscope.json_report import advice_to_json, dead_to_json
    from driftscope.pipeline import Inputs, measure
    from driftscope.trace.manifest import WAS_SIMULATED
    from driftscope.trace.runs import labels_of
    from driftscope_reports.terminal import show_advice, show_dead

    measured = measure(
        Inputs(
            sources=runs,
            labels=labels_of(runs, None),
            baseline=baseline,
            engine=options.maker_of(engine),
            cluster=cluster,
        )
    )
    plain = measured.baseline
    replays = [*measured.replays, *([plain] if isinstance(plain, ReplaySummary) else [])]
    if replays or isinstance(plain, ReplaySummary):
        raise NoDataError(
            f"{replays[0].label}: was recorded by no probe, so it has no step times; give the run "
            "recorded in the server"
        )
    if not measured.runs:
        raise NoDataError(
            f"{runs[0]}: a run without speculation, of which no K is known; give it as --baseline "
            "of a run with speculation"
        )
    for run in measured.runs:
        if run.manifest.is_simulated:
            raise NoDataError(f"{run.label}: {WAS_SIMULATED} or the best K")
        if cuts_by_confidence(run):
            raise NoDataError(
                f"{run.label}: the engine cuts drafts by their confidence, and would cut others at "
                "another K; record a run at each K that you consider, and compare their speed"
            )
    first, *others = measured.runs
    guards = [
        *(f"{run.label}: {problem}" for run in measured.runs for problem in run.problems),
        *(f"{run.label}: {why}" for run in others if (why := left_out_because(first, run))),
    ]
    if plain is not None and (why := left_out_because(first, plain, target_only=True)):
        guards.append(f"{plain.label}: {why}")
    for guard in guards:
        typer.echo(f"warning: {printable(guard)}", err=True)
    advice = advice_on(first, others, plain)
    if advice is None and is_dead(first):
        if as_json:
            typer.echo(dead_to_json(first), nl=False)
        else:
            show_dead(first)
        return
    if advice is None:
        raise NoDataError(
            f"{runs[0]}: too few step times for an advice; record 20 or more comparable steps"
        )
    if as_json:
        typer.echo(advice_to_json(advice), nl=False)
    else:
        show_advice(advice)
    if advice.tells_nothing:
        raise typer.Exit(EXIT_NO_DATA)
