"""An inspection on the terminal: one line that sums it up, then what was found, errors first."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from driftscope.ablate.intervention import AS_SERVED
from driftscope.ablate.result import (
    Ablation,
    Decomposition,
    Effect,
    Part,
    VocabularyCoverage,
    conclusion_of,
)
from driftscope.analysis.statistics.intervals import Interval
from driftscope.boundary.text import shown
from driftscope.inspect.checkpoints import Sizes
from driftscope.inspect.checks.result import CheckResult, Level
from driftscope.inspect.inspection import Answer, Inspection
from driftscope.inspect.trial.result import STOPPED, Acceptance, Trial, by_reason

_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "cyan"}
_ANSWERS = {
    Answer.SOUND: "green",
    Answer.NOT_COMPARED: "cyan",
    Answer.WRONG: "bold red",
    Answer.UNEXPLAINED: "bold red",
    Answer.CANNOT_TELL: "yellow",
}
_SHOWN = 5
"""Repairs that are shown, the best first."""
_INDENT = 9
"""Columns before the lines of a result: the width of the longest level, and two."""


def print_inspection(inspection: Inspection) -> None:
    """Print an inspection to stdout."""
    console = Console(highlight=False)
    console.print(Text(_headline(inspection), "bold"))
    if inspection.conclusion:
        console.print(Text(shown(inspection.conclusion), _ANSWERS[inspection.answer]))
    for result in inspection.results:
        _print_result(console, result)
    if inspection.unknown is not None:
        for line in inspection.unknown.details:
            console.print(Text(shown(line)))
        return
    if inspection.trial is not None:
        _print_trial(console, inspection.trial)
    console.print(Text(_sizes(inspection.sizes), "dim"))


def _print_trial(console: Console, trial: Trial) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("acceptance length", "95% interval", "gain", "p", "drafter"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    table.add_row(
        *acceptance_cells(trial.acceptance),
        "",
        "",
        f"as it is ({trial.prompts} prompts, K = {trial.k})",
    )
    whole = [tried for tried in trial.tried if tried.prompts == trial.prompts]
    for tried in (*whole[:_SHOWN], *trial.renderings):
        gain, p = f"{tried.gain.difference:+.2f}", f"{tried.gain.p:.2g}"
        words = Text(shown(tried.change.change))
        table.add_row(*acceptance_cells(tried.acceptance), gain, p, words)
    console.print(table)
    for reason, ids in by_reason(trial.not_applicable).items():
        console.print(Text(f"not tried: {', '.join(ids)}: {shown(reason)}", "dim"))
    console.print(Text(f"{len(trial.tried)} repairs tried; --json has all of them", "dim"))
    if trial.stopped:
        console.print(Text(f"{STOPPED}: another repair may help more", "yellow"))
    for reason in trial.not_promised:
        console.print(Text(f"not promised: {shown(reason)}", "yellow"))
    rates = " ".join(f"{rate:.2f}" for rate in trial.acceptance.marginal)
    console.print(Text(f"accepted by depth: {rates}"))
    for line in trial.inside.lines:
        console.print(Text(f"{line[0].upper()}{line[1:]}."))


def acceptance_cells(acceptance: Acceptance) -> tuple[str, str]:
    """Return the acceptance length and its interval in words, "" without one."""
    spread = acceptance.mean_length_interval
    return f"{acceptance.mean_length:.2f}", f"{spread.low:.2f}-{spread.high:.2f}" if spread else ""


def _headline(inspection: Inspection) -> str:
    counts = ", ".join(
        f"{inspection.count(level)} {level}{'' if inspection.count(level) == 1 else 's'}"
        for level in Level
    )
    if inspection.unknown is not None:
        name = f"{shown(inspection.drafter)}: {shown(inspection.format)}"
        return f"{name} is of no known kind: {inspection.unknown.instead}"
    against = f" for {shown(inspection.target)}" if inspection.target else ""
    return (
        f"{shown(inspection.drafter)}{against}: {inspection.format}, {inspection.checks} checks: "
        + (f"given to {inspection.loaded_by}: " if inspection.loaded_by else "")
        + counts
        + (f"; not compared: {inspection.unchecked}" if inspection.unchecked else "")
    )


def _print_result(console: Console, result: CheckResult) -> None:
    console.print(
        Text.assemble(
            (f"{result.level:<{_INDENT}}", _STYLES[result.level]),
            (shown(result.title), "bold"),
            (f"  [{result.id}, {result.certainty}]", "dim"),
        )
    )
    for name, words in (
        ("found", result.there),
        ("expected", result.expected),
        ("by", result.rule),
        ("change", result.change),
    ):
        if words:
            line = Text(f"{name}: {shown(words)}", "green" if name == "change" else "")
            console.print(Padding(line, (0, 0, 0, _INDENT)))


def _sizes(sizes: Sizes) -> str:
    share = f", {sizes.share:.1%} of the target's" if sizes.share is not None else ""
    licence = f"; licence: {shown(sizes.licence)}" if sizes.licence else ""
    return f"{sizes.parameters / 1e6:.1f} M parameters, {sizes.bytes / 1e6:.1f} MB{share}{licence}"


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
    found = conclusion_of(result)
    console.print(Text(shown(found.headline), "bold"))
    console.print(Text(f"What to do: {found.advice}"))
    console.print(Text(f"{shown(result.drafter)}: {where}", "dim"))
    if result.decomposition is not None:
        _print_decomposition(console, result.decomposition, result.k)
    table = Table(box=None, pad_edge=False)
    for name in ("acceptance length", "change", "interval of the change", "with"):
        table.add_column(name, justify="left" if name == "with" else "right")
    for effect in result.effects:
        table.add_row(*_cells(effect))
    console.print(table)
    for name, reason in result.not_applicable.items():
        console.print(Text(f"not applicable: {name}: {reason}", "dim"))
    if result.vocabulary.lacking:
        _print_vocabulary(console, result.vocabulary)
    if result.near_misses is not None:
        console.print(Text(result.near_misses.words))
    words = "Intervals are over prompts and hold for all interventions together."
    console.print(Text(words, "dim"))


def _print_vocabulary(console: Console, coverage: VocabularyCoverage) -> None:
    console.print(
        Text(f"{coverage.lacking:.1%} of the target's tokens are not in the draft vocabulary:")
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    for part in coverage.by_region:
        ends = part.interval
        interval = f"[{ends.low:.1%}, {ends.high:.1%}]" if ends else _NOT_KNOWN
        counted = f"of {part.tokens:,} tokens"
        table.add_row(f"  {part.region}", f"{part.lacking:.1%}", interval, counted)
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
        ("the drafter's own states", parts.states),
        ("wrong tokens read (cost no acceptance)", parts.tokens),
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
    length = f"{effect.acceptance.mean_length:.2f}"
    if effect.intervention.id == AS_SERVED:
        return length, "", "", "as served"
    change = f"{effect.difference:+.2f}"
    return length, change, _ends(effect.interval, 1.0, 2), shown(effect.intervention.changes)


def _ends(interval: Interval | None, factor: float, digits: int) -> str:
    if interval is None:
        return _NOT_KNOWN
    low, high = (f"{factor * end:+.{digits}f}" for end in (interval.low, interval.high))
    return f"[{low}, {high}]"
