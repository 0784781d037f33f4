"""The `driftscope ablate` command."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.cli.options import (
    TARGET,
    DownloadOption,
    DrafterArgument,
    KOption,
    PickleOption,
    PromptsOption,
)

if TYPE_CHECKING:
    from driftscope.inspect.checkpoints import DrafterFiles, TargetFiles

WORK = ".work"
"""Suffix of the work file, after the name of the output."""


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
    allow_pickle: PickleOption = False,
    download: DownloadOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also write an HTML page; a file is replaced.",
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
    from driftscope.boundary.files import write_text
    from driftscope.boundary.text import shown
    from driftscope.cli.run_reports import steps
    from driftscope.cli.screens.inspection import print_ablation
    from driftscope.cli.trial_run import EXTRA, TrialOptions, load_bench, opening_of
    from driftscope.distributions import needs
    from driftscope.errors import EXIT_INTERRUPTED, UsageError
    from driftscope.inspect.checkpoints import open_drafter, open_target

    opening = opening_of(allow_pickle=allow_pickle, download=download)
    work_path = None if output is None else output.with_name(f"{output.name}{WORK}")
    if output is not None and output.is_dir():
        raise UsageError(f"--output {output}: is a folder; name a file")
    files, opened = open_drafter(drafter, opening), open_target(target, opening)
    wanted, text = named_interventions(interventions), _template(template) if template else None
    trial = TrialOptions(prompts=prompts, k=k, most_prompts=most_prompts, opening=opening)
    with needs(EXTRA):
        from driftscope.ablate.run import AblationOptions, GivenTemplate, WorkFile, run_ablation

        given = GivenTemplate(name=str(template), text=text) if text else None
        options = AblationOptions(k=k, wanted=wanted, positions=positions, template=given)
        identity = {
            **_identity(files, opened, prompts, most_prompts),
            "--k": k,
            "--positions": positions,
            "--interventions": list(wanted),
            "--template": None if text is None else _digest(text.encode()),
        }
        work = WorkFile(work_path, identity) if work_path else None
        try:
            with work or nullcontext():
                result = run_ablation(
                    files,
                    opened,
                    lambda: load_bench(opened, trial),
                    options,
                    names=(drafter, target),
                    work=work,
                    progress=lambda units: steps(units, "Drafting"),
                )
        except KeyboardInterrupt:
            kept = work_path is not None and work_path.exists()
            typer.echo(
                f"stopped; {shown(str(work_path))} keeps what is measured: the same command goes on"
                if kept
                else "stopped; nothing is kept: name an --output to go on later",
                err=True,
            )
            raise typer.Exit(EXIT_INTERRUPTED) from None
    from driftscope.ablate.result import to_json

    if as_json:
        typer.echo(to_json(result), nl=False)
    else:
        print_ablation(result)
    if output is None or work_path is None:
        return
    from driftscope_reports.ablation_page import to_html

    words = ["driftscope", "ablate", drafter, "--target", target, "--prompts", prompts]
    words += ["--k", str(k), "--positions", str(positions), "--limit", str(most_prompts)]
    words += ["--interventions", interventions] if interventions else []
    words += ["--template", str(template)] if template else []
    words += ["--allow-pickle"] if allow_pickle else []
    write_text(output, to_html(result, command=shlex.join([*words, "-o", str(output)])))
    work_path.unlink(missing_ok=True)
    typer.echo(f"written: {shown(str(output))}", err=True)


def _identity(
    files: DrafterFiles, target: TargetFiles, prompts: str, most_prompts: int
) -> dict[str, Any]:
    """Return models and prompts, on which the counts depend, by the names that an error shows."""
    from driftscope.boundary import strict_json
    from driftscope.boundary.files import read_bytes
    from driftscope.inspect.weights_digest import weights_digest
    from driftscope.version import __version__
    from driftscope.workloads.suites.prompts import prompts_of

    def model(folder: Path) -> list[str | None]:
        config = _digest(read_bytes(folder / "config.json"))
        return [str(folder), config, weights_digest(str(folder))]

    chosen = prompts_of(prompts)[:most_prompts]
    asked = [[prompt.key, list(prompt.messages), prompt.text] for prompt in chosen]
    return {
        "driftscope": __version__,
        "drafter": model(files.folder),
        "--target": model(target.folder),
        "--prompts": _digest(strict_json.dumps(asked).encode()),
    }


def _digest(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()[:16]


def _template(path: Path) -> str:
    """Return the text of a chat template; raises UsageError."""
    from driftscope.boundary.files import first_line, read_text
    from driftscope.errors import UsageError

    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--template {path}: cannot be read ({first_line(error)})") from error
    if not text.strip():
        raise UsageError(f"--template {path}: is empty; give a chat template in Jinja")
    return text


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
