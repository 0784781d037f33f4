"""Section that compares the first run with the others, figure by figure as `driftscope compare`
does."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.compare import MARGINAL, Comparison, mix_words
from driftscope.analysis.number_words import listed, runs_of_numbers
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.case import comparison_of
from driftscope.metrics.acceptance import MARGINAL as MARGINAL_RATE
from driftscope.pipeline import Analysis
from driftscope_reports.charts import Unit, bars, figure
from driftscope_reports.model import Picture, Section, axis_name, table
from driftscope_reports.page import part
from driftscope_reports.tables import comparison_cells, comparison_rows, stands_out

_Compared = Sequence[tuple[int, Comparison]]
"""Comparisons with the first run, each with the index of its other run."""


def compare(analysis: Analysis) -> Section:
    """Return the differences of acceptance by depth from the first run, and a table of all."""
    first, *others = analysis.runs
    cases = {case.run.label: case for case in analysis.cases}
    known: list[tuple[int, Comparison]] = []
    for index, other in enumerate(others, start=1):
        case = cases.get(other.label)
        # Findings may compare with a baseline instead.
        if case is not None and case.reference and case.reference.label == first.label:
            compared = case.comparison
        else:
            compared = comparison_of(first, other)
        known += [(index, compared)] if compared else []
    if not known:
        why = (
            "these runs cannot be compared: they share no depth, or show most requests in part."
            if others
            else "this report has one run. Analyse two runs, or this report and another run, to "
            "see their differences here."
        )
        return Section(id="compare", name="Compare", missing=f"Not applicable: {why}")
    counts = [
        f"{sum(row.differs for row in compared.differences)} of {len(compared.differences)} "
        f"figures of {compared.second}"
        for _, compared in known
    ]
    return Section(
        id="compare",
        name="Compare",
        conclusion=f"{listed(counts)} differ clearly from those of {first.label}.",
        lead="The tables leave out depths and labels that show no difference: `driftscope compare` "
        "lists them with --all.",
        pictures=[_by_depth(analysis.runs, known)],
        below=[
            *(
                part(
                    "paragraph",
                    f"{compared.second}: {mix_words(compared)} Its own figures are as served.",
                )
                for _, compared in known
                if compared.mix
            ),
            *(
                table(
                    ["figure", first.label, compared.second, "difference (95% interval)", "change"],
                    [comparison_cells(r) for r in comparison_rows(compared) if stands_out(r)],
                    caption=f"Differences of {compared.second} to {first.label}",
                    sortable=True,
                )
                for _, compared in known
            ),
        ],
    )


def _by_depth(runs: Sequence[RunSummary], known: _Compared) -> Picture:
    """Return the differences of acceptance by depth, as `driftscope compare` tests them."""
    drawn, differing = [], []
    for index, compared in known:
        rows = compared.at(MARGINAL)
        drawn.append(
            bars(
                compared.second,
                [row.depth or 0 for row in rows],
                [row.difference for row in rows],
                run=index,
                intervals=[row.interval for row in rows],
            )
        )
        at = runs_of_numbers(compared.apart_at) if compared.apart_at else "none"
        differing.append(f"{compared.second} at {at}")
    return Picture(
        id="compare-acceptance",
        title=f"Acceptance differs clearly from {runs[0].label}'s by {axis_name(runs)}: "
        f"{listed(differing)}",
        how=f"At each depth, acceptance minus that of {runs[0].label}, with the 95% interval: pair "
        "by pair if both answered the same prompts. The title names the depths that differ when "
        "all are tested together.",
        chart=figure(
            drawn,
            x_title=axis_name(runs),
            y_title="difference of acceptance",
            unit=Unit.SHARE,
            level=0.0,
            from_zero=False,
            named=True,
        ),
        definitions=(MARGINAL_RATE,),
        hero=True,
    )
