"""Acceptance under live interventions, as lines for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.shadow_agreement import ShadowAgreement
from driftscope_reports.terminal.first_screen_text import plain


def shadow_lines(runs: Sequence[RunSummary]) -> list[Text]:
    """Return a line for each intervention of each run, and one on what is left out."""
    lines = []
    for run in runs:
        who = f"{run.label}: " if len(runs) > 1 else ""
        for found in run.live_shadow:
            lines += [f"{who}{found.words}", f"   {_rounds(found)}"]
    return [Text(plain(line)) for line in lines]


def _rounds(found: ShadowAgreement) -> str:
    left_out = f"; {found.left_out:,} rounds at an answer's end left out" if found.left_out else ""
    return (
        f"further than served in {found.further:,} rounds, less far in {found.less_far:,}, "
        f"{found.clusters:,} independent requests{left_out}"
    )
