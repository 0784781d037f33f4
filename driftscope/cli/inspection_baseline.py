"""An inspection that a run is compared with, by `driftscope compare` or as a gate's baseline."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.analysis.baseline_relation import Relation
from driftscope.analysis.query.query_engine import Engine
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary.text import shown
from driftscope.cli.options import is_inspection
from driftscope.errors import NoDataError
from driftscope.inspect.compare_run import (
    InspectedAcceptance,
    compare_inspections,
    compare_run,
    notes_of,
    read_inspection,
    relation_to,
    rounds_like,
    to_json,
)
from driftscope.pipeline import Inputs, measure

LAST_ROUNDS = (
    "the last rounds of answers are counted, which an inspection leaves out: the run does not hold "
    "where its answers end"
)


def runs_like(
    inspected: InspectedAcceptance, inputs: Inputs
) -> tuple[tuple[RunSummary, ...], tuple[str, ...]]:
    """Return the summaries of the runs, without the last rounds of answers, and notes on how they
    were made. Rounds of requests that did not end are left out, too: where their answers end is not
    known.

    Raises what `driftscope.pipeline.measure` raises.
    """
    try:
        return measure(replace(inputs, only=Filter(where=rounds_like(inspected.k)))).runs, ()
    except NoDataError:
        return measure(inputs).runs, (LAST_ROUNDS,)


def compare_with_inspection(
    document: Path,
    run: Path,
    label: str,
    *,
    engine: Callable[[], Engine],
    cluster: str | None,
    as_json: bool,
) -> None:
    """Print how the acceptance of a run, or of another inspection, differs from an inspection's.

    Raises UsageError for a document that is no inspection, and MixedTraceError for a run that did
    not draft its K.
    """
    inspected = read_inspection(document)
    if is_inspection(run):
        comparison = compare_inspections(inspected, read_inspection(run))
    else:
        inputs = Inputs(sources=[run], labels=[label], engine=engine, cluster=cluster)
        runs, notes = runs_like(inspected, inputs)
        if not runs:
            raise NoDataError(f"{run}: is no run of a probe; record one to compare its acceptance")
        comparison = compare_run(inspected, runs[0], notes)
    if as_json:
        typer.echo(to_json(comparison), nl=False)
        return
    console = Console(highlight=False)
    console.print(Text(f"{shown(comparison.verdict)}."))
    for note in comparison.notes:
        console.print(Text(f"Note: {shown(note)}."))
    names = ("A", "B") if comparison.both_inspected else ("inspection", "run")
    table = Table("", *names, "difference", "95% interval", box=None, pad_edge=False)
    for row in comparison.differences:
        name = "acceptance length" if row.depth is None else f"accepted to depth {row.depth}"
        ends = f"{row.interval.low:+.3f} to {row.interval.high:+.3f}" if row.interval else "–"
        figures = f"{row.promised:.3f}", f"{row.served:.3f}", f"{row.difference:+.3f}"
        table.add_row(name, *figures, ends)
    console.print(table)


def inspection_of(baseline: Path | None) -> InspectedAcceptance | None:
    """Return the inspection that a baseline names; None for a run. Raises UsageError for another
    document."""
    return read_inspection(baseline) if baseline is not None and is_inspection(baseline) else None


def relations_to(inspected: InspectedAcceptance, inputs: Inputs) -> dict[str, Relation]:
    """Return how each run compares with an inspection, by label, over the rounds that the
    inspection makes, too; notes go to stderr.

    Raises NoDataError without a run of a probe, MixedTraceError for one of another K.
    """
    runs, notes = runs_like(inspected, inputs)
    if not runs:
        raise NoDataError(
            "no run of a probe is given: an inspection as baseline has its acceptance alone"
        )
    sys.stderr.write(
        f"baseline: an inspection has acceptance at K = {inspected.k} alone, without the last "
        "rounds of answers, which are left out of the runs, too; rules that need other figures of "
        "a baseline are undecided\n"
    )
    for run in runs:
        for note in (*notes_of(run), *notes):
            sys.stderr.write(f"{shown(f'{run.label}: {note}')}\n")
    return {run.label: relation_to(inspected, run) for run in runs}
