"""The `driftscope doctor` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from driftscope.cli.shared import completion
from driftscope.cli.shared.run_argument import named_run


def doctor(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Target model that is to be served, with the options of `driftscope serve`.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            callback=named_run,
            autocompletion=completion.runs,
            help="A recorded run: also show its engine and which target layers it captured.",
        ),
    ] = None,
    drafters: Annotated[
        bool,
        typer.Option("--drafters", help="List the kinds of drafter that can be recorded."),
    ] = False,
    engine: Annotated[
        Literal["vllm", "sglang"],
        typer.Option(help="Engine to look for; MODEL, --run and --drafters are vLLM's."),
    ] = "vllm",
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Show whether a live engine can be recorded here: ready, or not ready because of what.

    With MODEL and --speculative-config it answers in seconds for that server, without importing
    vLLM. Without MODEL it imports vLLM and looks for every hook. Exits with 0 if ready, otherwise
    with 1.
    """
    import dataclasses

    from driftscope.cli.screens.doctor_table import print_checks
    from driftscope.cli.screens.server_examination import examined, examined_sglang
    from driftscope.errors import EXIT_ERROR
    from driftscope.json_report.operation import checks_to_json

    if engine == "sglang":
        checks = examined_sglang()
    else:
        checks = examined(model, context.args, run, drafters=drafters)
    if as_json:
        typer.echo(checks_to_json([dataclasses.asdict(check) for check in checks]), nl=False)
    else:
        print_checks(checks)
    if any(check.ok is False for check in checks):
        raise typer.Exit(EXIT_ERROR)
