"""An ablation on the terminal: what the loss is made of, then each intervention."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.decomposition import Decomposition, Part
from driftscope.ablate.effect import Effect, PairedBy
from driftscope.ablate.intervention import AS_SERVED
from driftscope.ablate.vocabulary_coverage import VocabularyCoverage
from driftscope.analysis.statistics.intervals import Interval
from driftscope.boundary.text import shown

_NOT_KNOWN = "–"
WRONG_TOKENS = (
    "A chain is accepted up to its first wrong token, so wrong tokens cost agreement\n"
    "after it, but no acceptance. Where two numbers follow: with the other factor the\n"
    "drafter's own, and with it right."
)
"""Explanation of the decomposition."""


def print_ablation(result: Ablation) -> None:
    """Print an ablation to stdout."""
    console = Console(highlight=False)
    where = f"{result.positions:,} positions of {result.prompts} prompts, K = {result.k}"
    console.print(Text(f"{shown(result.drafter)}: {where}", "bold"))
    if result.decomposition is not None:
        _print_decomposition(console, result.decomposition, result.k)
    table = Table(box=None, pad_edge=False)
    for name in ("acceptance length", "change", "interval of the change", "with"):
        table.add_column(name, justify="left" if name == "with" else "right")
    for each in result.effects:
        table.add_row(*_cells(each))
    console.print(table)
    for name, reason in result.not_applicable.items():
        console.print(Text(f"not applicable: {name}: {reason}", "dim"))
    if result.vocabulary.lacking:
        _print_vocabulary(console, result.vocabulary)
    console.print(Text(_pairing(result), "dim"))


def _pairing(result: Ablation) -> str:
    words = "Intervals are over prompts and hold for all interventions together."
    if any(each.paired_by is PairedBy.PROMPT for each in result.effects):
        words += (
            "\n*: the target answered the prompts anew, so differences are paired by prompt,\n"
            "not by position, and other answers may be easier or harder to draft."
        )
    return words


def _print_vocabulary(console: Console, coverage: VocabularyCoverage) -> None:
    console.print(
        Text(f"{coverage.lacking:.1%} of the target's tokens are not in the draft vocabulary:")
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for each in coverage.by_region:
        ends = each.interval
        interval = f"[{ends.low:.1%}, {ends.high:.1%}]" if ends else _NOT_KNOWN
        counted = f"of {each.tokens:,} tokens"
        table.add_row(f"  {each.region}", f"{each.lacking:.1%}", interval, counted)
    console.print(table)


def _print_decomposition(console: Console, parts: Decomposition, k: int) -> None:
    console.print(
        Text(
            f"The drafted token is the target's in {parts.first:.1%} at depth 1 and in "
            f"{parts.last:.1%} at depth {k}.\nOf the {100 * parts.loss.value:.1f} points lost:"
        )
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, part in (
        ("wrong tokens read", parts.tokens),
        ("the drafter's own states", parts.states),
        ("the rest (later positions)", parts.rest),
    ):
        table.add_row(f"  {name}", *_part_cells(part))
    console.print(table)
    console.print(Text(WRONG_TOKENS, "dim"))


def _part_cells(part: Part) -> tuple[str, str, str]:
    orders = ""
    if part.orders is not None:
        orders = " or ".join(f"{100 * value:+.1f}" for value in part.orders)
    return f"{100 * part.value:+.1f}", _ends(part.interval, 100.0, 1), orders


def _cells(effect: Effect) -> tuple[str, ...]:
    length = f"{effect.acceptance.length:.2f}"
    if effect.intervention.id == AS_SERVED:
        return length, "", "", "as served"
    change = f"{effect.difference:+.2f}"
    mark = "*" if effect.paired_by is PairedBy.PROMPT else ""
    changes = f"{shown(effect.intervention.changes)}{mark}"
    return length, change, _ends(effect.interval, 1.0, 2), changes


def _ends(interval: Interval | None, factor: float, digits: int) -> str:
    if interval is None:
        return _NOT_KNOWN
    low, high = (f"{factor * end:+.{digits}f}" for end in (interval.low, interval.high))
    return f"[{low}, {high}]"
