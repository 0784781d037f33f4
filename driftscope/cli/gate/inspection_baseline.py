"""An inspection given as the baseline of a gate: reading it, and what is to be known about it."""

from __future__ import annotations

import sys
from pathlib import Path

from driftscope.analysis.baseline_relation import Relation
from driftscope.cli.inspection.like_rounds import runs_like
from driftscope.cli.shared.run_argument import is_inspection
from driftscope.errors import NoDataError
from driftscope.inspect.promise import Promise, notes_of, read_promise
from driftscope.inspect.promise_baseline import relation_to
from driftscope.pipeline import Inputs
from driftscope_reports.terminal.run_table import plain as printable


def promise_of(baseline: Path | None) -> Promise | None:
    """Return the inspection that a baseline names; None for a run. Raises UsageError for another
    document."""
    return read_promise(baseline) if baseline is not None and is_inspection(baseline) else None


def relations_to(promise: Promise, inputs: Inputs) -> dict[str, Relation]:
    """Return how each run compares with an inspection, by label, over the rounds that the
    inspection makes, too; notes go to stderr.

    Raises NoDataError without a run of a probe, MixedTraceError for one of another K.
    """
    runs, notes = runs_like(promise, inputs)
    if not runs:
        raise NoDataError(
            "no run of a probe is given: an inspection as baseline has its acceptance alone"
        )
    sys.stderr.write(
        f"baseline: an inspection has acceptance at K = {promise.k} alone, without the last rounds "
        "of answers, which are left out of the runs, too; rules that need other figures of a "
        "baseline are undecided\n"
    )
    for run in runs:
        for note in (*notes_of(run), *notes):
            sys.stderr.write(f"{printable(f'{run.label}: {note}')}\n")
    return {run.label: relation_to(promise, run) for run in runs}
