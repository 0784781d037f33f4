"""The `driftscope inspect` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    drafter: Annotated[
        str,
        typer.Argument(
            metavar="DRAFTER", help="Folder of the drafter, or a repository in the local cache."
        ),
    ],
    other: Annotated[
        str | None,
        typer.Argument(metavar="B", help="A second drafter, compared with the first."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Folder of its target, or a repository in the cache."),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--files-only", help="Also run both models and try repairs; needs --target."
        ),
    ] = True,
    prompts: Annotated[
        str, typer.Option(metavar="SET", help="A shipped set of prompts, or a file of prompts.")
    ] = "chat",
    k: Annotated[
        int, typer.Option("--k", metavar="N", min=1, max=32, help="Tokens per draft.")
    ] = 5,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=5, help="Number of prompts that are used.")
    ] = 32,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Load the tensors of PyTorch pickles; code in them is refused."
        ),
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Download repositories that the cache lacks.")
    ] = False,
    write_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the repaired config.json to FILE.")
    ] = None,
    write_weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the repaired config and weights to a new DIR."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write an HTML page; a file is replaced."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 at a warning too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the inspection as JSON.")] = False,
) -> None:
    """Find what is wrong with a drafter checkpoint before any server starts.

    Config, weights and vocabulary are checked by the rules of the engines. With a target both
    models are run, and each plausible repair is tried on the same prompts. With a second drafter B,
    both are run and compared from the same positions, and no repair is tried. Exits with 3 if there
    is an error: an engine would refuse the checkpoint, or accept less than it could. Ctrl-C (exit
    code 130) keeps what is measured, in every output. Nothing is downloaded without --download.
    """
    from driftscope.cli.inspection.loaded_bench import TrialOptions
    from driftscope.cli.inspection.opening_options import opening_of
    from driftscope.cli.inspection.output import print_result, write_page
    from driftscope.cli.inspection.request import Request

    options = TrialOptions(
        prompts=prompts,
        k=k,
        most_prompts=limit,
        config_file=write_config,
        weights_folder=write_weights,
        opening=opening_of(allow_pickle=allow_pickle, download=download),
    )
    request = Request(drafter=drafter, other=other, target=target, run=run, options=options)
    result = request.result()
    print_result(result, strict=strict, as_json=as_json)
    if output is not None:
        write_page(result, output, request.command_line(output))
    raise typer.Exit(result.exit_code(strict=strict))
