"""The `driftscope doctor` command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from driftscope_probes.server.doctor import ExaminedItem

_MARKS = {True: ("ok", "green"), False: ("PROBLEM", "bold red"), None: ("", "")}
_HOOK = "hook "
"""Beginning of the topic of one hook: those that work are counted, not listed."""


def doctor(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Target model that is to be served, with the options of `driftscope serve`.",
        ),
    ] = None,
    engine: Annotated[
        Literal["vllm", "sglang"],
        typer.Option(help="Engine to look for."),
    ] = "vllm",
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Show whether a live engine can be recorded here: ready, or not ready because of what.

    With MODEL and --speculative-config it answers in seconds for that server, without importing
    vLLM. Without MODEL it imports vLLM and looks for every hook. Exits with 0 if ready, with
    5 if the drafter's kind is not known, so that only acceptance and timing can be recorded, and
    otherwise with 1.
    """

    from rich.console import Console

    from driftscope.boundary.json_document import layout, plain
    from driftscope.errors import EXIT_ERROR, EXIT_UNKNOWN
    from driftscope_probes.server.doctor import (
        SGLANG,
        VLLM,
        examine,
        examine_server,
        verdict,
    )

    chosen = SGLANG if engine == "sglang" else VLLM
    server: tuple[str, Sequence[str]] | None = (model, context.args) if model else None
    if chosen is VLLM:
        server = _server(model, context.args)
    if server is not None:
        checks = list(examine_server(chosen, *server))
    else:
        words = f"Checking this machine (importing {chosen.name} takes seconds)"
        with Console(stderr=True).status(words):
            checks = list(examine(chosen))
    checks = [verdict(checks, chosen), *checks]
    if as_json:
        typer.echo(layout(plain(checks)), nl=False)
    else:
        _print(checks)
    if any(check.ok is False for check in checks):
        raise typer.Exit(EXIT_ERROR)
    if any(check.unknown for check in checks):
        raise typer.Exit(EXIT_UNKNOWN)


def _server(model: str | None, options: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Return the model and the options of the server that is asked about, with the paths of the
    lab's models; None without a model. Raises UsageError for options without a model."""
    from driftscope.distributions import LAB_TARGETS, needs_lab
    from driftscope.errors import UsageError

    if [model, *options[:1]] == ["vllm", "serve"]:  # the whole command was given
        model, options = next(iter(options[1:]), None), options[2:]
    if options and (model is None or model.startswith(("{", "-"))):
        raise UsageError("give MODEL first, then the options of its server")
    if model is None or model not in LAB_TARGETS:
        return None if model is None else (model, options)
    with needs_lab():
        from driftscope_lab.models import MODELS

    known = MODELS[model]
    target = str(known.prepared())
    return target, options if "--no-speculation" in options else known.with_speculation(options)


def _print(checks: Sequence[ExaminedItem]) -> None:
    """Print the verdict and the checks to stdout, with a hint under each problem."""
    from rich.table import Table
    from rich.text import Text

    from driftscope.boundary.text import output_console
    from driftscope_probes.server.doctor import VERDICT

    console = output_console(80)
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        mark, style = _MARKS[check.ok]
        if check.topic == VERDICT:
            console.print(Text(check.detail, style), soft_wrap=True)
            if check.hint and check.ok is False:
                console.print(Text(f"-> {check.hint}", "yellow"), soft_wrap=True)
        elif not (check.topic.startswith(_HOOK) and check.ok):
            table.add_row(Text(mark, style), check.topic, Text(check.detail))
            if check.ok is False and check.hint:
                table.add_row("", "", Text(f"-> {check.hint}", "yellow"))
    console.print(table)
