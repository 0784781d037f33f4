"""`driftscope doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.boundary import strict_json


def doctor(
    run: Annotated[
        Path | None,
        typer.Option(
            help="A recorded run: say its engine and which target layers that captured, too.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Say what is installed, which runner vLLM would take, which hooks hold, and what is recorded.

    Exits 0 when a live vLLM can be recorded here, else 1.
    """
    import dataclasses

    from rich.console import Console

    from driftscope.cli.screens.doctor_table import print_checks
    from driftscope.errors import EXIT_ERROR
    from driftscope_probes.server.doctor import examine

    talk = Console(stderr=True)
    with talk.status("Looking at this machine (vLLM takes some seconds to import)"):
        checks = list(examine(run))
    if as_json:
        typer.echo(strict_json.dumps([dataclasses.asdict(check) for check in checks], indent=1))
    else:
        print_checks(checks)
    if any(check.ok is False for check in checks):
        raise typer.Exit(EXIT_ERROR)
