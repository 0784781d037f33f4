"""Implementation of `driftscope compare` for two replays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from driftscope.analysis.number_words import listed
from driftscope.analysis.replays import is_replay
from driftscope.cli.screens import analyze_output
from driftscope.errors import MixedTraceError, NoDataError
from driftscope.json_report.report import to_json
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.format.manifest import read_manifest


def both_replays(first: Path, second: Path) -> bool:
    """Whether both runs are replays; raises MixedTraceError if only one is."""
    kinds = {is_replay(read_manifest(run)) for run in (first, second)}
    if len(kinds) > 1:
        raise MixedTraceError(
            f"{first}, {second}: a replay and a probe's run, which measure different things; "
            "compare two of the same kind, or give both to `driftscope analyze`, which joins them"
        )
    return kinds == {True}


def compare_replays(runs: Sequence[Path], labels: Sequence[str], *, as_json: bool) -> None:
    """Print the figures of both replays and their ratios, prompt by prompt.

    Raises NoDataError for a run that holds sums only, and MixedTraceError for replays of different
    prompts.
    """
    analysis = analyze(Inputs(sources=runs, labels=labels))
    if sums := [each.label for each in analysis.senders if not each.has_rows]:
        raise NoDataError(
            f"{listed(sums)}: cannot tell how the runs compare: no per-request rows, sums only; "
            "`driftscope analyze` shows the figures side by side"
        )
    if not analysis.versus:
        raise MixedTraceError(
            f"{runs[0]}, {runs[1]}: these replays have no prompt in common; replay the same suite"
        )
    if as_json:
        typer.echo(to_json(analysis), nl=False)
    else:
        analyze_output.show_table(analysis)
