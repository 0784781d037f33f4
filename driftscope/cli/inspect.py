"""The `driftscope inspect` command."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
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

MOST_PROMPTS = 128
"""Largest number of prompts that are used unless the command names another."""


def inspect(
    drafter: DrafterArgument,
    target: Annotated[str | None, TARGET] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--files-only",
            help="Also ask an installed vLLM or SGLang about a class that is not checked here "
            "and, with --target, run both models and try repairs.",
        ),
    ] = True,
    prompts: PromptsOption = "chat",
    k: KOption = 5,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            metavar="N",
            min=5,
            help="Largest number of prompts; after 32, only as many as depth 1 needs to decide.",
        ),
    ] = MOST_PROMPTS,
    expected_length: Annotated[
        float | None,
        typer.Option(
            metavar="TOKENS",
            min=1.0,
            help="Acceptance length that the author published, or that an earlier inspection "
            "found: whether the drafter reaches it, up to a tenth.",
        ),
    ] = None,
    allow_pickle: PickleOption = False,
    download: DownloadOption = False,
    write_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the repaired config.json to FILE.")
    ] = None,
    output: PageOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 at a warning too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the inspection as JSON.")] = False,
) -> None:
    """Find what is wrong with a drafter checkpoint before any server starts.

    Config, weights and vocabulary are checked by the rules of the engines. With a target both
    models are run, and each plausible repair is tried on the same prompts. Exits with 3 if there
    is an error: an engine would refuse the checkpoint, or accept less than it could; with 4 if the
    models could not be run; with 5 if the checkpoint's layout is not known, so that nothing is
    judged. Ctrl-C (exit code 130) keeps what
    is measured, in every output. Nothing is downloaded without --download.
    """
    from rich.console import Console

    from driftscope.boundary.text import shown
    from driftscope.cli.screens.inspection import print_inspection
    from driftscope.cli.trial_run import opening_of, with_trial
    from driftscope.errors import UsageError
    from driftscope.inspect.engine_loading import EngineProcess, installed_engine
    from driftscope.inspect.inspection import inspect_files, to_json

    if (write_config or expected_length) and not (target and run):
        option = "--write-config" if write_config else "--expected-length"
        raise UsageError(f"{option} needs --target, and not --files-only")
    opening = opening_of(allow_pickle=allow_pickle, download=download)
    engine = installed_engine() if run else None
    asked = EngineProcess(engine) if engine else nullcontext()
    with Console(stderr=True).status("Checking the files"), asked as process:
        result = inspect_files(drafter, target, opening, process)
    if target and run and result.known:
        result = with_trial(
            result,
            target,
            prompts,
            limit,
            k=k,
            expected_length=expected_length,
            config_file=write_config,
            opening=opening,
        )
    code = result.code(strict=strict)
    if as_json:
        typer.echo(to_json(result, code), nl=False)
    else:
        print_inspection(result)
    if output is not None:
        from driftscope.boundary.files import write_text
        from driftscope_reports.checkpoint_pages import inspection_html

        words = ["driftscope", "inspect", drafter, *(["--target", target] if target else [])]
        words += [] if run else ["--files-only"]
        words += ["--allow-pickle"] if allow_pickle else []
        if target and run:
            words += ["--prompts", prompts, "--k", str(k)]
            words += ["--limit", str(limit)] if limit != MOST_PROMPTS else []
            words += ["--expected-length", f"{expected_length:g}"] if expected_length else []
        command = shlex.join([*words, "-o", str(output)])
        write_text(output, inspection_html(result, command=command))
        typer.echo(f"written: {shown(str(output))}", err=True)
    raise typer.Exit(code)
