"""The `driftscope ablate` command."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from driftscope.cli.options import (
    TARGET,
    DownloadOption,
    DrafterArgument,
    KOption,
    PageOption,
    PickleOption,
    PromptsOption,
)


def ablate(
    drafter: DrafterArgument,
    target: Annotated[str, TARGET],
    prompts: PromptsOption = "chat",
    k: KOption = 5,
    positions: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Positions of each answer from which chains start."),
    ] = 20,
    most_prompts: Annotated[
        int,
        typer.Option(
            "--limit",
            metavar="N",
            min=5,
            help="Number of prompts that are used.",
        ),
    ] = 200,
    interventions: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Names with commas between them; without it, all."),
    ] = None,
    allow_pickle: PickleOption = False,
    download: DownloadOption = False,
    output: PageOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find out why a drafter's acceptance falls over depth: change one thing, and count again.

    Both models are run outside any engine. Chains start at the same positions of the target's own
    greedy answers, as served and with each intervention: the target's tokens or states fed, the
    state's size kept, attention changed, the served dtype. Differences are paired by position, and
    the loss between depth 1 and K is divided into wrong tokens, the drafter's own states, and the
    rest.

    Ctrl-C (exit code 130) ends it with the result of the prompts that are measured by then.
    """
    from driftscope.boundary.files import write_text
    from driftscope.boundary.text import shown
    from driftscope.cli.run_reports import steps
    from driftscope.cli.screens.inspection import print_ablation
    from driftscope.cli.trial_run import EXTRA, load_bench, opening_of
    from driftscope.distributions import needs
    from driftscope.errors import EXIT_INTERRUPTED, UsageError
    from driftscope.inspect.checkpoints import open_drafter, open_target

    opening = opening_of(allow_pickle=allow_pickle, download=download)
    if output is not None and output.is_dir():
        raise UsageError(f"--output {output}: is a folder; name a file")
    files, opened = open_drafter(drafter, opening), open_target(target, opening)
    wanted = named_interventions(interventions)
    with needs(EXTRA):
        from driftscope.ablate.run import run_ablation

        result = run_ablation(
            files,
            opened,
            lambda: load_bench(opened, prompts, most_prompts),
            k=k,
            wanted=wanted,
            positions=positions,
            names=(drafter, target),
            progress=lambda units: steps(units, "Drafting"),
        )
    from driftscope.ablate.result import to_json

    if as_json:
        typer.echo(to_json(result), nl=False)
    else:
        print_ablation(result)
    if output is not None:
        from driftscope_reports.checkpoint_pages import ablation_html

        words = ["driftscope", "ablate", drafter, "--target", target, "--prompts", prompts]
        words += ["--k", str(k), "--positions", str(positions), "--limit", str(most_prompts)]
        words += ["--interventions", interventions] if interventions else []
        words += ["--allow-pickle"] if allow_pickle else []
        write_text(output, ablation_html(result, command=shlex.join([*words, "-o", str(output)])))
        typer.echo(f"written: {shown(str(output))}", err=True)
    if result.stopped:
        typer.echo(f"stopped by Ctrl-C: the result is of {result.prompts} prompts", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)


def named_interventions(names: str | None) -> tuple[str, ...]:
    """Return the wanted interventions in the order of the catalogue; raises UsageError."""
    from driftscope.ablate.intervention import AS_SERVED, INTERVENTIONS
    from driftscope.errors import UsageError

    every = tuple(name for name in INTERVENTIONS if name != AS_SERVED)
    if names is None:
        return every
    asked = {name.strip() for name in names.split(",") if name.strip()}
    if not asked:
        raise UsageError(f"--interventions: name one or more of {', '.join(every)}")
    if unknown := asked - set(INTERVENTIONS):
        raise UsageError(
            f"--interventions {sorted(unknown)[0]}: no such intervention; there are "
            f"{', '.join(every)}"
        )
    return tuple(name for name in every if name in asked)
