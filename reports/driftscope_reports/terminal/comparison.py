"""A comparison of two runs as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from driftscope.analysis.compare import (
    LENGTH,
    TIMES,
    WHOLE,
    Comparison,
    Difference,
    between_ends,
    mix_words,
    signed,
    verdict,
)
from driftscope.analysis.figures.rounds import UNPAIRED
from driftscope.analysis.number_words import (
    count,
    milliseconds,
    number,
)
from driftscope.analysis.run_differences import doubt
from driftscope.boundary.text import output_console, shown

_PIPE_WIDTH = 110
"""Width in columns when the output is not a terminal and COLUMNS is not set."""
_LONGEST = 12
"""Longest label that heads a column; columns of longer ones are called A and B."""
_FIGURE_NAMES = {LENGTH: "acceptance length", **TIMES}


def show_comparison(comparison: Comparison) -> None:
    """Print the comparison to stdout, the verdict first."""
    console = output_console(_PIPE_WIDTH)
    if comparison.where:
        console.print(f"Of both runs only --where {shown(comparison.where)}.", soft_wrap=True)
    console.print(f"{verdict(comparison)}.")
    console.print(_pairing(comparison))
    if warning := doubt(comparison.unlike):
        console.print(f"Note: {shown(warning)}.")
    labels = (comparison.first, comparison.second)
    if max(map(len, labels)) > _LONGEST:
        console.print(f"A is {shown(labels[0])}, B is {shown(labels[1])}.", soft_wrap=True)
        labels = ("A", "B")
    table = Table(
        "", *labels, "difference", "95% interval", "p (adjusted)", "", box=None, pad_edge=False
    )
    for each in comparison.differences:
        table.add_row(
            _figure_name(each),
            milliseconds(each.first) if each.metric in TIMES else number(each.first, 3),
            milliseconds(each.second) if each.metric in TIMES else number(each.second, 3),
            signed(each, each.difference),
            between_ends(each) if each.interval else "not tested",
            _p(each.p_adjusted),
            "differs" if each.differs else "",
        )
    console.print(table)


def _figure_name(each: Difference) -> str:
    what = _FIGURE_NAMES.get(each.metric, f"accepted to depth {each.depth}")
    return what if each.segment == WHOLE else f"{each.segment}: {what}"


def _pairing(comparison: Comparison) -> str:
    if comparison.pairing == UNPAIRED:
        first, second = comparison.requests
        words = (
            f"Unpaired: {first:,} against {count(second, 'request')}; the "
            "runs did not answer the same prompts."
        )
        return f"{words} {shown(mix_words(comparison))}".rstrip()
    alone = f"; {comparison.alone:,} without a counterpart left out" if comparison.alone else ""
    return f"Paired by {comparison.pairing}: {count(comparison.pairs, 'pair')}{alone}."


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"
