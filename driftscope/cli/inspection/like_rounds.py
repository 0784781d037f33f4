"""Runs measured over the rounds that an inspection of the same prompts makes, too."""

from __future__ import annotations

from dataclasses import replace

from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import NoDataError
from driftscope.findings.conclusions import Analysis
from driftscope.inspect.promise import Promise, rounds_like
from driftscope.pipeline import Inputs, measure

LAST_ROUNDS = (
    "the last rounds of answers are counted, which an inspection leaves out: the run does not hold "
    "where its answers end"
)


FROM_REPORT = (
    "a report holds sums over all rounds: the last rounds of its answers are counted, which an "
    "inspection leaves out"
)


def runs_like(promise: Promise, inputs: Inputs) -> tuple[tuple[RunSummary, ...], tuple[str, ...]]:
    """Return the summaries of the runs, without the last rounds of answers, and notes on how they
    were made. Rounds of requests that did not end are left out, too: where their answers end is not
    known.

    Raises what `driftscope.pipeline.measure` raises.
    """
    stored = any(isinstance(each, Analysis) for each in inputs.sources)  # nothing can be left out
    try:
        runs = measure(replace(inputs, only=Filter(where=rounds_like(promise.k)))).runs
    except NoDataError:
        return measure(inputs).runs, (LAST_ROUNDS,)
    return runs, (FROM_REPORT,) if stored else ()
