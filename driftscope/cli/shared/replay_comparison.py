"""`driftscope compare` of two replays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from driftscope.analysis.replays.senders import is_replay, summarise_replay
from driftscope.cli.screens import analyze_output
from driftscope.errors import MixedTraceError
from driftscope.pipeline import conclude
from driftscope.trace.format.manifest import read_manifest
from driftscope.trace.read.reader import read_trace
from driftscope_reports.summary_json import to_json


def both_replays(first: Path, second: Path) -> bool:
    """Whether both are replays; raises MixedTraceError when only one is."""
    kinds = {is_replay(read_manifest(run)) for run in (first, second)}
    if len(kinds) > 1:
        raise MixedTraceError(
            f"{first}, {second}: a replay and a probe's run, which measure different things; "
            "compare two of a kind, or give both to `driftscope analyze`, which joins them"
        )
    return kinds == {True}


def compare_replays(runs: Sequence[Path], labels: Sequence[str], *, as_json: bool) -> None:
    """Print figures of both and their ratios, prompt by prompt."""
    senders = [
        summarise_replay(read_trace(run), label) for run, label in zip(runs, labels, strict=True)
    ]
    analysis = conclude([], senders)
    if not analysis.versus:
        raise MixedTraceError(
            f"{runs[0]}, {runs[1]}: these replays asked no prompt in common; replay the same suite"
        )
    if as_json:
        typer.echo(to_json(analysis), nl=False)
    else:
        analyze_output.show_table(analysis)
