"""An inspection on the terminal: one line that sums it up, then what was found, errors first."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from driftscope.boundary.text import shown
from driftscope.inspect.checks.check_result import CheckResult, Level
from driftscope.inspect.files.sizes import Sizes
from driftscope.inspect.inspection import Inspection
from driftscope.inspect.trial.acceptance import Acceptance
from driftscope.inspect.trial.trial_result import STOPPED, Trial, by_reason

_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "cyan"}
_SHOWN = 5
"""Repairs that are shown, the best first."""
_INDENT = 9
"""Columns before the lines of a result: the width of the longest level, and two."""


def print_inspection(inspection: Inspection) -> None:
    """Print an inspection to stdout."""
    console = Console(highlight=False)
    console.print(Text(_headline(inspection), "bold"))
    if inspection.conclusion:
        console.print(Text(inspection.conclusion, "green"))
    for result in inspection.results:
        _print_result(console, result)
    if not inspection.checked:
        console.print(Text(f"{inspection.format}: recognised, not checked further", "yellow"))
    if inspection.trial is not None:
        _print_trial(console, inspection.trial)
    console.print(Text(_sizes(inspection.sizes), "dim"))


def _print_trial(console: Console, trial: Trial) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("acceptance length", "95% interval", "gain", "p", "drafter"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    table.add_row(
        *acceptance_cells(trial.as_is), "", "", f"as it is ({trial.prompts} prompts, K = {trial.k})"
    )
    whole = [each for each in trial.tried if each.prompts == trial.prompts]
    for each in whole[:_SHOWN]:
        gain, p = f"{each.gain.difference:+.2f}", f"{each.gain.p:.2g}"
        table.add_row(*acceptance_cells(each.acceptance), gain, p, Text(each.repair.change))
    for other in trial.renderings:
        gain, p = f"{other.gain.difference:+.2f}", f"{other.gain.p:.2g}"
        table.add_row(
            *acceptance_cells(other.acceptance), gain, p, Text(shown(other.rendering.change))
        )
    console.print(table)
    for reason, ids in by_reason(trial.not_applicable).items():
        console.print(Text(f"not tried: {', '.join(ids)}: {shown(reason)}", "dim"))
    console.print(Text(f"{len(trial.tried)} repairs tried; --json has all of them", "dim"))
    if trial.stopped:
        console.print(Text(f"{STOPPED}: another repair may help more", "yellow"))
    rates = " ".join(f"{rate:.2f}" for rate in trial.as_is.marginal)
    console.print(Text(f"accepted by depth: {rates}"))
    for line in trial.inside.lines:
        console.print(Text(f"{line[0].upper()}{line[1:]}."))


def acceptance_cells(acceptance: Acceptance) -> tuple[str, str]:
    """Return the acceptance length and its interval in words, "" without one."""
    spread = acceptance.length_interval
    return f"{acceptance.length:.2f}", f"{spread.low:.2f}-{spread.high:.2f}" if spread else ""


def _headline(inspection: Inspection) -> str:
    counts = ", ".join(
        f"{inspection.count(level)} {level}{'' if inspection.count(level) == 1 else 's'}"
        for level in Level
    )
    against = f" for {shown(inspection.target)}" if inspection.target else ""
    return (
        f"{shown(inspection.drafter)}{against}: {inspection.format}, {inspection.checks} checks: "
        f"{counts}"
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
