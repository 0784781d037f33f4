"""The `driftscope watch` command."""

from __future__ import annotations

from typing import Annotated

import typer

from driftscope.cli import options
from driftscope.cli.options import named_target
from driftscope.vocabulary import EngineName


def watch(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|URL",
            callback=lambda values: [named_target(value) for value in values],
            autocompletion=options.runs,
            help="A run directory, even while it is being written; or the URL of an engine that "
            "serves Prometheus metrics (`driftscope serve --prometheus PORT`, or the engine's "
            "own page, which has acceptance only); or the pages of several replicas, which are "
            "listed, the worst first.",
        ),
    ],
    engine: Annotated[
        EngineName | None,
        typer.Option(
            metavar="ENGINE",
            help="The engine whose own metrics to read, even beside driftscope's: vllm, sglang, "
            "trtllm, llamacpp or lmdeploy; without it, the first found.",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds between two updates.")
    ] = 1.0,
    window: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Time window of the figures in seconds; 0: since the start.",
        ),
    ] = 60.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print the figures since the start once, and stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print figures as JSON, one line per update.")
    ] = False,
) -> None:
    """Show a live engine in the terminal: acceptance, attention and hidden state by depth.

    Ends when the run ends, or with Ctrl-C.
    """
    from driftscope.cli.screens.watch import run

    run(targets, interval_s=interval, window_s=window, once=once, as_json=as_json, own=engine)
