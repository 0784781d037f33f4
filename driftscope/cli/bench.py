"""`driftscope bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.lab_package import needs_lab

if TYPE_CHECKING:
    from driftscope.workloads.bench.managed_server import Contender

DEFAULT_FOLDER = Path("driftscope-bench/{time}")
TRIO = "trio"
NO_SPECULATION = "no speculation"


def bench(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Target, as for `vllm serve`; `trio` is the small shipped one.")
    ],
    drafter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|LABEL=NAME", help="A drafter to serve it with; repeatable."),
    ] = None,
    no_spec: Annotated[
        bool, typer.Option("--no-spec", help="Also serve it without speculation.")
    ] = False,
    method: Annotated[str, typer.Option(help="vLLM's name of the speculation method.")] = "eagle3",
    k: Annotated[str, typer.Option("-k", metavar="4|2,4,8", help="Draft tokens per round.")] = "4",
    suite: Annotated[str, typer.Option(metavar="NAME|FILE")] = "concurrency",
    prompts: Annotated[str | None, typer.Option(metavar="NAME|FILE")] = None,
    concurrency: Annotated[str | None, typer.Option(metavar="1,4,16")] = None,
    rate: Annotated[str | None, typer.Option(metavar="R,...")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Times that each is asked.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts at most.")] = None,
    warmup: Annotated[int, typer.Option(min=0)] = 4,
    rounds: Annotated[
        int, typer.Option(min=1, help="Serve all of them in turn, so many times.")
    ] = 1,
    every: Annotated[
        int | None, typer.Option(min=1, help="Record each n-th draft step; default: a 1% budget.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one whole answer.")] = 600.0,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with an API key: each server is started with it, by its "
            "environment, and asked with it. Default: VLLM_API_KEY if it is set.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for runs, logs and report.")
    ] = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Serve MODEL with each drafter, one after another, replay a suite to each, and compare.

    Starts and stops vLLM by itself; every other option goes to vLLM unchanged. Ends in one report.
    Exits 1 when a request was not answered or rows were lost, 130 after Ctrl-C; the report has what
    was done.
    """
    from driftscope.cli.analyze import write_reports
    from driftscope.cli.shared.extras import needs
    from driftscope.errors import EXIT_ERROR, UsageError

    with needs("replay"):
        from driftscope.cli.replay import levels, run_path
        from driftscope.cli.screens import replay_output as talk
        from driftscope.workloads.bench.contenders import bench as run_all
        from driftscope.workloads.client.replay import Order
        from driftscope.workloads.client.sending import Patience
        from driftscope.workloads.suites.prompt_sources import prompts_of
        from driftscope.workloads.suites.suite import load_suite
    api_key_env = key_variable(api_key_env, context.args)
    contenders = contenders_of(
        model,
        drafter or [],
        draft_tokens(k),
        context.args,
        method=method,
        every=every,
        no_spec=no_spec,
        api_key_env=api_key_env,
    )
    if not contenders:
        raise UsageError("give --drafter or --no-spec: there is nothing to serve")
    folder = run_path(output)
    order = Order(
        url="",
        suite=load_suite(suite),
        run=folder,
        levels=levels(concurrency, rate),
        repeat=repeat,
        limit=limit,
        warmup=warmup,
        prompts=None if prompts is None else prompts_of(prompts),
        patience=Patience(timeout_s=timeout),
        api_key_env=api_key_env,
        note={} if prompts is None else {"prompts": prompts},
    )
    results = []
    for contender in contenders:
        if not quiet:
            talk.say(f"to serve: {contender.label}")
    with talk.watched(quiet=quiet) as watcher:
        for result in run_all(contenders, order, folder, rounds=rounds, watcher=watcher):
            results.append(result)
            talk.say_lost(result.done)
            if not quiet:
                talk.say(f"{result.label}: {talk.counted(result.done)}")
    named = [
        (path, f"{result.label}{suffix}")
        for result in results
        for path, suffix in ((result.server, ""), (result.client, " (client)"))
        if path is not None
    ]
    write_reports(
        [path for path, _ in named],
        labels=[label for _, label in named],
        html=folder / "report.html",
        json_path=folder / "report.json",
        quiet=quiet or as_json,
    )
    if as_json:
        typer.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
    if any(result.done.stopped for result in results):
        raise typer.Exit(talk.INTERRUPTED)
    if not all(result.done.whole for result in results):
        raise typer.Exit(EXIT_ERROR)


def key_variable(named: str | None, options: Sequence[str]) -> str | None:
    """The environment variable with the servers' key; None: they want none. Raises UsageError."""
    import os

    from driftscope.boundary.secret_text import key_from
    from driftscope.errors import UsageError
    from driftscope.workloads.bench.managed_server import VLLM_KEY

    if any(option.partition("=")[0] == "--api-key" for option in options):
        raise UsageError("--api-key: the list of processes would show it; give --api-key-env NAME")
    found = named or (VLLM_KEY if os.environ.get(VLLM_KEY) else None)
    if found is not None:
        key_from(found, os.environ)
    return found


def draft_tokens(text: str) -> list[int]:
    """From "2,4,8"; raises UsageError."""
    from driftscope.errors import UsageError

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if any(number < 1 for number in found):
        raise UsageError(f"-k {text}: give whole numbers from 1, separated by commas")
    return found


def contenders_of(
    model: str,
    drafters: Sequence[str],
    k: Sequence[int],
    options: Sequence[str],
    *,
    method: str,
    every: int | None,
    no_spec: bool,
    api_key_env: str | None = None,
) -> list[Contender]:
    """One per drafter and K, and one without speculation if asked for."""
    from driftscope.workloads.bench.managed_server import Contender

    target, options, environ = _resolved(model, options)
    out = []
    for given in drafters:
        label, _, path = given.rpartition("=")
        for tokens in k:
            name = label or Path(path).name
            out.append(
                Contender(
                    label=name if len(k) == 1 else f"{name}, K = {tokens}",
                    model=target,
                    speculation={
                        "method": method,
                        "model": _drafter(model, path),
                        "num_speculative_tokens": tokens,
                    },
                    options=options,
                    environ=environ,
                    api_key_env=api_key_env,
                    every=every,
                )
            )
    if no_spec:
        out.append(
            Contender(
                label=NO_SPECULATION,
                model=target,
                speculation=None,
                options=options,
                environ=environ,
                api_key_env=api_key_env,
            )
        )
    return out


def _resolved(model: str, options: Sequence[str]) -> tuple[str, Sequence[str], Mapping[str, str]]:
    """The model's path, and what the small shipped one needs besides."""
    if model != TRIO:
        return model, options, {}
    with needs_lab():
        from driftscope_lab.trio import trio_path
        from driftscope_lab.trio.serving import ENVIRONMENT, OPTIONS

    missing = [pair for pair in OPTIONS if not any(o.startswith(pair[0]) for o in options)]
    added = [part for pair in missing for part in pair]
    return str(trio_path() / "target"), [*options, *added], ENVIRONMENT


def _drafter(model: str, name: str) -> Any:
    if model != TRIO:
        return name
    with needs_lab():
        from driftscope_lab.trio import trio_path

    shipped = trio_path() / name
    return str(shipped) if shipped.is_dir() else name
