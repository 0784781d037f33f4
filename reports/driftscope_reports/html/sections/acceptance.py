"""Section parts on acceptance: how many drafted tokens the target keeps."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import listed, number, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import CONDITIONAL, MARGINAL, MEAN_LENGTH
from driftscope_reports.drawing.chart import Unit
from driftscope_reports.html.parts.run_series import (
    about,
    at_depths,
    axis_name,
    by_run,
    depth_chart,
    line,
)
from driftscope_reports.html.parts.section import Picture


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return the pictures of acceptance by depth, marginal and conditional."""
    marginal = [
        line(i, run.label, run.acceptance.marginal, run.acceptance.marginal_interval)
        for i, run in enumerate(runs)
    ]
    conditional = [
        line(i, run.label, run.acceptance.conditional, run.spread.get("conditional"))
        for i, run in enumerate(runs)
    ]
    return [
        Picture(
            id="acceptance-marginal",
            title=_title(runs),
            how="Of the rounds that draft this deep, how many are right up to this depth, so the "
            "line can only fall. Bars are 95% intervals.",
            chart=depth_chart(runs, marginal, "of all rounds", Unit.SHARE),
            definitions=(MARGINAL, MEAN_LENGTH),
        ),
        Picture(
            id="acceptance-conditional",
            title=_conditional_title(runs),
            how="Of the rounds that were right up to the depth before, how many still are. The few "
            "easy rounds that are left hold it up at large depths: judge by the marginal rate.",
            chart=depth_chart(runs, conditional, "of rounds right so far", Unit.SHARE),
            definitions=(CONDITIONAL,),
        ),
        *(_by_k(run, runs) for run in runs if run.acceptance.by_k),
    ]


def _by_k(run: RunSummary, runs: Sequence[RunSummary]) -> Picture:
    """Return the picture of acceptance for each K that the run drafted."""
    parts = run.acceptance.by_k
    lines = [
        line(i, f"K = {part.k}", part.marginal, part.marginal_interval)
        for i, part in enumerate(parts)
    ]
    lengths = [f"{number(part.mean_length)} at K = {part.k}" for part in parts]
    return Picture(
        id=f"acceptance-by-k-{runs.index(run)}",
        title=about(run, runs, f"rounds yield {listed(lengths)}"),
        how="Acceptance of the rounds that drafted each K. Lines may differ because K follows the "
        "batch size, or was changed while other requests were served: that is the traffic's doing, "
        "not K's alone.",
        chart=depth_chart([run], lines, "of rounds with this K", Unit.SHARE),
        definitions=(MARGINAL, MEAN_LENGTH),
    )


def _title(runs: Sequence[RunSummary]) -> str:
    parts = [
        f"{percent(run.acceptance.marginal[0])} to {percent(run.acceptance.marginal[-1])}"
        for run in runs
    ]
    last = {run.k for run in runs}
    end = f"{axis_name(runs)} {last.pop()}" if len(last) == 1 else "the last one"
    return f"From {axis_name(runs)} 1 to {end}, acceptance goes from {by_run(runs, parts)}"


def _conditional_title(runs: Sequence[RunSummary]) -> str:
    found, worst = [], []
    for run in runs:
        known = [(r, d) for d, r in enumerate(run.acceptance.conditional, start=1) if r is not None]
        if known:
            rate, depth = min(known)
            found.append(run)
            worst.append((depth, percent(rate)))
    if not worst:
        return f"Acceptance given the {axis_name(runs)} before"
    return f"The hardest {axis_name(runs)} to pass is {at_depths(found, worst)} survive it"
