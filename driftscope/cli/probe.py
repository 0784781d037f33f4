"""The `driftscope probe` commands: look at a running probe, and change what it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.cli import options

if TYPE_CHECKING:
    from driftscope.trace.control import ProbeChange

Json = Annotated[bool, typer.Option("--json", help="Print the status as JSON.")]

probe = typer.Typer(
    no_args_is_help=True, help="Show the status of a running probe, or change what it records."
)


@probe.command(cls=options.Command, epilog=options.epilog("probe status latest"))
def status(run: options.RunArgument, as_json: Json = False) -> None:
    """Show what each process records, at which rate and cost, and which rows it lost."""
    from driftscope.cli.screens.probe import show
    from driftscope_probes.control import processes_of

    show(run, processes_of(run), as_json=as_json)


@probe.command(cls=options.Command, epilog=options.epilog("probe start latest"))
def start(run: options.RunArgument, as_json: Json = False) -> None:
    """Resume recording draft steps."""
    from driftscope.trace.control import ProbeChange

    _change(run, ProbeChange(recording=True), as_json=as_json)


@probe.command(cls=options.Command, epilog=options.epilog("probe stop latest"))
def stop(run: options.RunArgument, as_json: Json = False) -> None:
    """Stop recording draft steps until `start`. Verification and requests are still recorded."""
    from driftscope.trace.control import ProbeChange

    _change(run, ProbeChange(recording=False), as_json=as_json)


@probe.command("set", cls=options.Command, epilog=options.epilog("probe set latest --every 4"))
def set_(
    run: options.RunArgument,
    every: options.EveryOption = None,
    budget: options.BudgetOption = None,
    label: options.LabelsOption = None,
    all_labels: Annotated[
        bool, typer.Option("--all-labels", help="Record all requests, whatever their label.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change the rate or the selection; options not given stay as they are."""
    from driftscope.errors import UsageError
    from driftscope.trace.control import ControlValueError, ProbeChange, share_of

    if label and all_labels:
        raise UsageError("--label, --all-labels: give one of the two")
    try:
        change = ProbeChange(
            every=every,
            budget=None if budget is None else share_of(budget),
            labels=() if all_labels else tuple(dict.fromkeys(label)) if label else None,
        )
    except ControlValueError as error:
        raise UsageError(f"--{error}") from error
    if not change.given():
        raise UsageError("nothing to change: give --every, --budget, --label or --all-labels")
    _change(run, change, as_json=as_json)


def _change(run: Path, change: ProbeChange, *, as_json: bool) -> None:
    from driftscope.cli.screens.probe import show
    from driftscope_probes.control import change_run

    show(run, change_run(run, change), as_json=as_json)
