"""An inspection on the terminal: one line that sums it up, then what was found, errors first."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from driftscope.ablate.intervention import AS_SERVED
from driftscope.ablate.result import PARTS, WRONG_TOKENS, Ablation, conclusion_of
from driftscope.analysis.statistics.intervals import Interval
from driftscope.boundary.text import output_console, shown
from driftscope.inspect.checkpoints import Sizes
from driftscope.inspect.checks.result import CheckLevel, CheckResult
from driftscope.inspect.inspection import Inspection, Soundness
from driftscope.inspect.trial.result import STOPPED, Trial, by_reason

_STYLES = {CheckLevel.ERROR: "bold red", CheckLevel.WARNING: "yellow", CheckLevel.NOTE: "cyan"}
_ANSWERS = {
    Soundness.SOUND: "green",
    Soundness.NOT_COMPARED: "cyan",
    Soundness.WRONG: "bold red",
    Soundness.UNEXPLAINED: "bold red",
    Soundness.CANNOT_TELL: "yellow",
}
_SHOWN = 5
"""Repairs that are shown, the best first."""
_INDENT = 9
"""Columns before the lines of a result: the width of the longest level, and two."""


def print_inspection(inspection: Inspection) -> None:
    """Print an inspection to stdout."""
    console = output_console(80)
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
    as_it_is = f"as it is ({trial.prompts} prompts, K = {trial.k})"
    rows = [(trial.acceptance, "", "", as_it_is)]
    whole = [tried for tried in trial.tried if tried.prompts == trial.prompts]
    for tried in (*whole[:_SHOWN], *trial.renderings):
        gain, p = f"{tried.gain.difference:+.2f}", f"{tried.gain.p:.2g}"
        rows.append((tried.acceptance, gain, p, shown(tried.change.change)))
    for accepts, gain, p, words in rows:
        spread = accepts.mean_length_interval
        interval = f"{spread.low:.2f}-{spread.high:.2f}" if spread else ""
        table.add_row(f"{accepts.mean_length:.2f}", interval, gain, p, Text(words))
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


def _headline(inspection: Inspection) -> str:
    counts = ", ".join(
        f"{inspection.count(level)} {level}{'' if inspection.count(level) == 1 else 's'}"
        for level in CheckLevel
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
        ("found", result.found),
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


def _ends(interval: Interval | None, form: str, factor: float = 1.0) -> str:
    if interval is None:
        return "–"
    return f"[{factor * interval.low:{form}}, {factor * interval.high:{form}}]"


def print_ablation(result: Ablation) -> None:
    """Print an ablation to stdout."""
    console = output_console(80)
    found, parts = conclusion_of(result), result.decomposition
    console.print(Text(shown(found.headline), "bold"))
    console.print(Text(f"What to do: {found.advice}"))
    console.print(Text(f"{shown(result.drafter)}: {result.where}", "dim"))
    if parts is not None:
        console.print(Text(f"{parts.words(result.k)} In points:"))
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, part in parts.named:
            orders = " or ".join(f"{100 * order:+.1f}" for order in part.orders or ())
            cells = f"{100 * part.value:+.1f}", _ends(part.interval, "+.1f", 100), orders
            table.add_row(f"  {name}", *cells)
        console.print(table)
        console.print(Text(f"{WRONG_TOKENS} {PARTS}", "dim"))
    table = Table(box=None, pad_edge=False)
    for name in ("acceptance length", "change", "interval of the change", "with"):
        table.add_column(name, justify="left" if name == "with" else "right")
    for effect in result.effects:
        change = "", "", "as served"
        if effect.intervention.id != AS_SERVED:
            words = shown(effect.intervention.changes)
            change = f"{effect.difference:+.2f}", _ends(effect.interval, "+.2f"), words
        table.add_row(f"{effect.acceptance.mean_length:.2f}", *change)
    console.print(table)
    for name, reason in result.not_applicable.items():
        console.print(Text(f"not applicable: {name}: {reason}", "dim"))
    if result.vocabulary.lacking:
        console.print(Text(result.vocabulary.words))
        table = Table(box=None, pad_edge=False, show_header=False)
        for kind in result.vocabulary.by_region:
            interval, tokens = _ends(kind.interval, ".1%"), f"of {kind.tokens:,} tokens"
            table.add_row(f"  {kind.region}", f"{kind.lacking:.1%}", interval, tokens)
        console.print(table)
    if result.near_misses is not None:
        console.print(Text(result.near_misses.words))
    words = "Intervals are over prompts and hold for all interventions together."
    console.print(Text(words, "dim"))
