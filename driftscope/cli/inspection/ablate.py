"""The `driftscope ablate` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ablate(
    drafter: Annotated[
        str,
        typer.Argument(
            metavar="DRAFTER", help="Folder of the drafter, or a repository in the local cache."
        ),
    ],
    target: Annotated[
        str,
        typer.Option(metavar="TARGET", help="Folder of its target, or a repository in the cache."),
    ],
    prompts: Annotated[
        str, typer.Option(metavar="SET", help="A shipped set of prompts, or a file of prompts.")
    ] = "chat",
    k: Annotated[
        int, typer.Option("--k", metavar="N", min=1, max=32, help="Tokens per draft.")
    ] = 5,
    positions: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Positions of each answer from which chains start."),
    ] = 20,
    most_prompts: Annotated[
        int,
        typer.Option(
            "--limit",
            "--most-prompts",
            metavar="N",
            min=5,
            help="Number of prompts that are used.",
        ),
    ] = 200,
    interventions: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Names with commas between them; without it, all."),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Chat template of the intervention `template`, in Jinja; without it, that of the "
            "drafter's folder.",
        ),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Load the tensors of PyTorch pickles; code in them is refused."
        ),
    ] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Download repositories that the cache lacks.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Also write a run directory, which `driftscope analyze` makes a page of, or the "
            "JSON alone if PATH ends with .json.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find out why a drafter's acceptance falls over depth: change one thing, and count again.

    Both models are run outside any engine. Chains start at the same positions of the target's own
    greedy answers, as served and with each intervention: the target's tokens or states fed, the
    state's size kept, attention changed, the served dtype; or the prompts are written in another
    way. Differences are paired, and the loss between depth 1 and K is divided into wrong tokens,
    the drafter's own states, and the rest.

    With --output, Ctrl-C (exit code 130) keeps what is measured in a file beside the output, and
    the same command goes on from there.
    """
    from driftscope.cli.inspection.ablation_output import AblationOutput, print_result, say_stopped
    from driftscope.cli.inspection.ablation_request import AblationRequest
    from driftscope.cli.inspection.opening_options import opening_of
    from driftscope.errors import EXIT_INTERRUPTED

    request = AblationRequest(
        drafter=drafter,
        target=target,
        prompts=prompts,
        k=k,
        positions=positions,
        most_prompts=most_prompts,
        interventions=interventions,
        template=template,
        opening=opening_of(allow_pickle=allow_pickle, download=download),
    )
    place = None if output is None else AblationOutput(path=output)
    if place is not None:
        place.check()
    files, opened = request.opened()
    try:
        result = request.result(files, opened, None if place is None else place.work_path)
    except KeyboardInterrupt:
        say_stopped(place)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    print_result(result, as_json=as_json)
    if place is not None:
        place.write(result, files, opened)
