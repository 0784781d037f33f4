"""An inspection of two checkpoints on the terminal: the files of both, then their comparison."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from driftscope.boundary.terminal_text import shown
from driftscope.cli.screens.inspect_table import acceptance_cells, print_inspection
from driftscope.inspect.pair_inspection import NO_REPAIRS, PairInspection
from driftscope.inspect.trial.paired_positions import PairTrial
from driftscope.inspect.trial.trial_result import STOPPED


def print_pair(pair: PairInspection) -> None:
    """Print both inspections and the comparison to stdout."""
    for each in (pair.first, pair.second):
        print_inspection(each)
    if pair.trial is not None:
        _print_trial(pair.trial)
        Console(highlight=False).print(Text(NO_REPAIRS, "dim"))


def _print_trial(trial: PairTrial) -> None:
    from driftscope_reports.terminal import comparison

    console = Console(highlight=False)
    drafted = f"{trial.positions:,} positions of {trial.prompts} prompts, K = {trial.k}"
    console.print(Text(f"Both drafted from the same {drafted}.", "bold"))
    if trial.stopped:
        console.print(Text(f"{STOPPED}: the other prompts are left out.", "yellow"))
    comparison.show(trial.comparison)
    console.print(Text("In the rounds that a server would make, acceptance length:"))
    names = trial.comparison.first, trial.comparison.second
    for name, acceptance in zip(names, trial.as_served, strict=True):
        length, interval = acceptance_cells(acceptance)
        console.print(Text(f"  {length} (95% interval {interval})  {shown(name)}"))
