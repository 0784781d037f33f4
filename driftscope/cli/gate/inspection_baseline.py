"""An inspection given as the baseline of a gate: reading it, and what is to be known about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from driftscope.analysis.gate.baseline_relation import Relation
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.cli.shared.run_argument import is_inspection
from driftscope.errors import NoDataError
from driftscope.inspect.promise import Promise, notes_of, read_promise
from driftscope.inspect.promise_baseline import relation_to
from driftscope_reports.terminal.run_table import plain as printable


def promise_of(baseline: Path | None) -> Promise | None:
    """Return the inspection that a baseline names; None for a run. Raises UsageError for another
    document."""
    return read_promise(baseline) if baseline is not None and is_inspection(baseline) else None


def relations_to(promise: Promise, runs: Sequence[RunSummary]) -> dict[str, Relation]:
    """Return how each run compares with an inspection, by label; notes go to stderr.

    Raises NoDataError without a run of a probe, MixedTraceError for one of another K.
    """
    if not runs:
        raise NoDataError(
            "no run of a probe is given: an inspection as baseline has its acceptance alone"
        )
    sys.stderr.write(
        f"baseline: an inspection has acceptance at K = {promise.k} alone; rules that need other "
        "figures of a baseline are undecided\n"
    )
    for run in runs:
        for note in notes_of(run):
            sys.stderr.write(f"{printable(f'{run.label}: {note}')}\n")
    return {run.label: relation_to(promise, run) for run in runs}
