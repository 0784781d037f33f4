"""The `driftscope watch` command."""

from __future__ import annotations

from typing import Annotated

import typer


def watch(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|URL",
            help="A run directory, also one that is being written; or the URL of an engine that "
            "answers Prometheus (`driftscope serve --prometheus PORT`).",
        ),
    ],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    window: Annotated[
        float, typer.Option(min=0, help="Seconds that figures are of; 0: since the start.")
    ] = 60.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, print all since the start, and stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print figures as JSON, a line per look.")
    ] = False,
) -> None:
    """Show a live engine in the terminal: acceptance, attention and hidden state by depth.

    Ends when the run ends, or with Ctrl-C.
    """
    from driftscope.cli.screens.watch_loop import Options, run

    run(target, Options(interval_s=interval, window_s=window, once=once, as_json=as_json))
