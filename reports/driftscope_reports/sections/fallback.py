"""Steps in which speculation gave nothing."""

from __future__ import annotations

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import listed, percent
from driftscope.metrics.fallback import REJECTED, UNDRAFTED
from driftscope.trace.records import UndraftedReason
from driftscope_reports.markup import Markup, el
from driftscope_reports.section import Section
from driftscope_reports.tables import table


def section(analysis: Analysis) -> Section:
    """Rejected rounds and undrafted steps, as two shares."""
    runs = analysis.runs
    rejected = [f"{percent(run.fallback.rejected_share)} ({run.label})" for run in runs]
    undrafted = [f"{percent(run.fallback.undrafted_share)} ({run.label})" for run in runs]
    return Section(
        id="fallback",
        title=f"Speculation gave nothing in {listed(rejected)} of the decode steps, and "
        f"{listed(undrafted)} had no draft",
        how="A rejected round cost drafting time for nothing; an undrafted step had no draft to "
        "check. They are different things and are never added up; deliberate means that a setting "
        "asked for it.",
        numbers=_numbers(runs),
        folded=False,
        definitions=(REJECTED, UNDRAFTED),
        affects="fallback",
    )


def _numbers(runs: tuple[RunSummary, ...]) -> Markup:
    rows = []
    for run in runs:
        shares = run.fallback
        useful = shares.steps - shares.rejected_rounds - shares.undrafted
        rows.append(_row(run, "accepted at least one token", useful))
        rows.append(_row(run, "rejected round", shares.rejected_rounds))
        rows += [
            _row(run, f"undrafted: {_reason(name)}", count)
            for name, count in shares.by_reason.items()
        ]
        if not shares.by_reason:
            rows.append(_row(run, "undrafted", 0))
    return table(["run", "decode step", "share", "steps"], rows, words=3)


def _row(run: RunSummary, what: str, count: int) -> list[Markup | str]:
    share = count / run.fallback.steps
    bar = el("span", "", class_="bar", style=f"width:{100 * share:.1f}%")
    cell = el("span", el("span", bar, class_="track"), percent(share), class_="share")
    return [run.label, what, cell, f"{count:,}"]


def _reason(name: str) -> str:
    words = name.replace("_", " ")
    return f"{words} (deliberate)" if name in UndraftedReason.DELIBERATE else words
