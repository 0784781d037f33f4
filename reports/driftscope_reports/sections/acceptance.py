"""How many drafted tokens the target keeps."""

from __future__ import annotations

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import listed, percent
from driftscope.metrics.acceptance import CONDITIONAL, MARGINAL, MEAN_LENGTH
from driftscope_reports import figures
from driftscope_reports.markup import Markup
from driftscope_reports.section import Panel, Section
from driftscope_reports.tables import DepthRow, by_depth


def section(analysis: Analysis) -> Section:
    """Acceptance by depth, marginal and conditional."""
    runs = analysis.runs
    return Section(
        id="acceptance",
        title=_title(runs),
        how="The marginal rate at a depth counts all rounds: how often the draft was right up to "
        "there. The conditional rate counts only the rounds that were right up to the depth "
        "before, so the few easy ones that are left hold it up at large depths; bars are 95 % "
        "intervals.",
        panels=(
            Panel(
                id="acceptance-marginal",
                caption="Marginal acceptance by depth",
                definition=MARGINAL,
                figure=figures.lines(
                    [(i, run.label, run.acceptance.marginal) for i, run in enumerate(runs)],
                    y_title="of all rounds",
                    share=True,
                    spread=[run.acceptance.marginal_interval for run in runs],
                ),
            ),
            Panel(
                id="acceptance-conditional",
                caption="Conditional acceptance by depth",
                definition=CONDITIONAL,
                figure=figures.lines(
                    [(i, run.label, run.acceptance.conditional) for i, run in enumerate(runs)],
                    y_title="of rounds accepted so far",
                    share=True,
                ),
            ),
        ),
        numbers=_numbers(runs),
        definitions=(MARGINAL, CONDITIONAL, MEAN_LENGTH),
        affects="acceptance",
    )


def _title(runs: tuple[RunSummary, ...]) -> str:
    parts = [
        f"{percent(run.acceptance.marginal[0])} to {percent(run.acceptance.marginal[-1])} "
        f"({run.label})"
        for run in runs
    ]
    depths = {run.k for run in runs}
    last = f"depth {depths.pop()}" if len(depths) == 1 else "the last depth"
    return f"From depth 1 to {last}, acceptance goes from {listed(parts)}"


def _numbers(runs: tuple[RunSummary, ...]) -> Markup:
    rows: list[DepthRow] = []
    for run in runs:
        rows.append((run.label, MARGINAL.title, run.acceptance.marginal))
        rows.append((run.label, CONDITIONAL.title, run.acceptance.conditional))
    return by_depth(rows)
