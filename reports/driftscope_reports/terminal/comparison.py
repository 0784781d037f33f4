"""A comparison of two runs as a table for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from driftscope.analysis.compare.comparison_verdict import TIMES, between_ends, signed, verdict
from driftscope.analysis.compare.run_comparison import (
    LENGTH,
    WHOLE,
    Comparison,
    Difference,
)
from driftscope.analysis.compare.run_differences import doubt
from driftscope.analysis.figures.request_pairing import UNPAIRED
from driftscope.analysis.number_words import (
    count,
    milliseconds,
    number,
)
from driftscope_reports.terminal.run_table import plain

_NAMES = {LENGTH: "acceptance length", **TIMES}


def show(found: Comparison) -> None:
    """Print the comparison to stdout, the verdict first."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    console.print(f"{verdict(found)}.")
    console.print(_pairing(found))
    if said := doubt(found.unlike):
        console.print(f"Mind: {plain(said)}.")
    table = Table("", found.first, found.second, "difference", "95% interval", "p (adjusted)", "")
    for each in found.differences:
        table.add_row(
            _name(each),
            milliseconds(each.first) if each.metric in TIMES else number(each.first, 3),
            milliseconds(each.second) if each.metric in TIMES else number(each.second, 3),
            signed(each, each.difference),
            between_ends(each) if each.interval else "not tested",
            _p(each.p_adjusted),
            "differs" if each.differs else "",
        )
    console.print(table)


def _name(each: Difference) -> str:
    what = _NAMES.get(each.metric, f"accepted to depth {each.depth}")
    return what if each.segment == WHOLE else f"{each.segment}: {what}"


def _pairing(found: Comparison) -> str:
    if found.pairing == UNPAIRED:
        return (
            f"Unpaired: {found.requests[0]:,} against {count(found.requests[1], 'request')}; the "
            "runs did not answer the same prompts."
        )
    alone = f"; {found.alone:,} without a partner left out" if found.alone else ""
    return f"Paired by {found.pairing}: {count(found.pairs, 'pair')}{alone}."


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"
