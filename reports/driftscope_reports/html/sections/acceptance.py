"""Section parts on acceptance: how many drafted tokens the target keeps."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import listed, number, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import CONDITIONAL, MARGINAL, MEAN_LENGTH
from driftscope.vocabulary import CHOOSES_LENGTH
from driftscope_reports.drawing.chart import Unit
from driftscope_reports.html.parts.run_series import (
    about,
    at_depths,
    axis_name,
    by_run,
    depth_chart,
    line,
)
from driftscope_reports.model import Picture


def marginal(runs: Sequence[RunSummary]) -> Picture:
    """Return the picture of the marginal rates by depth, with all runs in it."""
    rates = [
        line(i, _pooled(run), run.acceptance.marginal, run.acceptance.marginal_interval)
        for i, run in enumerate(runs)
    ]
    return Picture(
        id="acceptance-marginal",
        title=_title(runs),
        how="Share of the rounds drafting this deep that are accepted up to this depth, so the "
        "line can only fall. Bars are 95% intervals.",
        chart=depth_chart(runs, rates, "of all rounds", Unit.SHARE),
        definitions=(MARGINAL, MEAN_LENGTH),
    )


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return the pictures of the conditional rates, and of acceptance by K."""
    conditional = [
        line(i, _pooled(run), run.acceptance.conditional, run.spread.get("conditional"))
        for i, run in enumerate(runs)
    ]
    return [
        Picture(
            id="acceptance-conditional",
            title=_conditional_title(runs),
            how="Share of the rounds accepted up to the previous depth that are also accepted at "
            "this one. At large depths only a few easy rounds remain, which keep it high: judge by "
            "the marginal rate.",
            chart=depth_chart(runs, conditional, "of rounds accepted so far", Unit.SHARE),
            definitions=(CONDITIONAL,),
        ),
        *(_by_k(run, runs) for run in runs if run.acceptance.by_k),
    ]


def _pooled(run: RunSummary) -> str:
    """Return the name of the line over all rounds. If rounds drafted several K, what decides K may
    decide acceptance as well, so the line holds for these rounds only."""
    if run.mixed:
        return f"{run.label}, as served"
    chosen = run.manifest.method in CHOOSES_LENGTH and run.recording.short_rounds
    return f"{run.label}, length chosen by the drafter" if chosen else run.label


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
        "batch size, or because other requests were served when K was changed: that is an effect "
        "of the traffic, not of K alone.",
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
    measured_runs, worst = [], []
    for run in runs:
        known = [(r, d) for d, r in enumerate(run.acceptance.conditional, start=1) if r is not None]
        if known:
            rate, depth = min(known)
            measured_runs.append(run)
            worst.append((depth, percent(rate)))
    if not worst:
        return f"Acceptance given the previous {axis_name(runs)}"
    return f"The hardest {axis_name(runs)} is {at_depths(measured_runs, worst)} are accepted at it"
