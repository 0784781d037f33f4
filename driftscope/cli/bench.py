"""The `driftscope bench` command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.cli.options import real_folder
from driftscope.distributions import TRIO, needs_lab

if TYPE_CHECKING:
    from driftscope.workloads.bench import Contender

DEFAULT_FOLDER = Path("driftscope-bench/{time}")
NO_SPECULATION = "no speculation"
K, DEFAULT_K = "num_speculative_tokens", "4"


def bench(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Target model, as for `vllm serve`; `trio` is the small shipped one.",
        ),
    ],
    drafter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|LABEL=NAME", help="Drafter to serve it with; repeatable."),
    ] = None,
    no_spec: Annotated[
        bool, typer.Option("--no-spec", help="Also serve it without speculation.")
    ] = False,
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="vLLM's name of the speculation method.")
    ] = "eagle3",
    k: Annotated[
        str | None,
        typer.Option("-k", metavar="4|2,4,8", help="Draft tokens per round; default: 4."),
    ] = None,
    best_k: Annotated[
        bool,
        typer.Option(
            "--best-k",
            help="Search for the fastest K instead of comparing drafters: serve with -k, then with "
            "each K that `driftscope advise` names next, until its neighbours are slower.",
        ),
    ] = False,
    most_runs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Largest number of runs of that search.")
    ] = 8,
    suite: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="A shipped suite (see `driftscope replay --list-suites`), or a YAML file.",
        ),
    ] = "concurrency",
    prompts: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Prompts to use instead of the suite's."),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="1,4,16", help="Numbers of concurrent requests; each is one load level."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="R,...", help="Requests per second, sent at random times."),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of times that each prompt is sent."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Largest number of prompts.")
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Warm-up requests before each level, which no figure counts."
        ),
    ] = 4,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of rounds in which all of them are served in turn."
        ),
    ] = 1,
    every: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Record each n-th draft step; default: a 1% budget."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="Seconds allowed for one complete answer."),
    ] = 600.0,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with an API key: each server is started with it, through "
            "its environment, and each request carries it. Default: VLLM_API_KEY if it is set.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            callback=real_folder,
            help="Folder for runs, logs and report.",
        ),
    ] = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Serve MODEL with each drafter, one after another, replay a suite to each, and compare.

    Starts and stops vLLM by itself; every other option goes to vLLM unchanged. Writes one report.
    Exits 1 when a request was not answered or rows were lost, 130 after Ctrl-C; the report then
    covers the finished requests.

    With --best-k, MODEL and the options are those of your `vllm serve`, --speculative-config
    included. It prints the advice on K, also on what was measured before an error or Ctrl-C. Exits
    1 when a server does not start or does not answer, 4 when a run has too few steps.
    """
    from driftscope.cli.failures import needs
    from driftscope.cli.run_reports import ReportFiles, RunChoice, write_reports
    from driftscope.errors import EXIT_ERROR, EXIT_INTERRUPTED, UsageError

    with needs("replay"):
        from driftscope.cli.replay import levels, run_path
        from driftscope.cli.screens import replay as talk
        from driftscope.workloads.bench import bench as run_all
        from driftscope.workloads.client.replay import Order
        from driftscope.workloads.client.sending import Patience
        from driftscope.workloads.suites.readers import prompts_of
        from driftscope.workloads.suites.suite import load_suite
    api_key_env = key_variable(api_key_env, context.args)
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
    if best_k:
        from driftscope.cli.best_k import Search, find_best_k

        if no_spec or rounds > 1:
            raise UsageError("--best-k: leave out --no-spec and --rounds; it serves K by itself")
        contender = drafting_contender(
            model, drafter or [], k, context.args, method=method, every=every, api_key=api_key_env
        )
        asked = Search(
            contender=contender,
            order=order,
            folder=folder,
            start=int((contender.speculation or {})[K]),
            most_runs=most_runs,
        )
        raise typer.Exit(find_best_k(asked, as_json=as_json, quiet=quiet))
    contenders = contenders_of(
        model,
        drafter or [],
        draft_tokens(k or DEFAULT_K),
        context.args,
        method=method,
        every=every,
        no_spec=no_spec,
        api_key_env=api_key_env,
    )
    if not contenders:
        raise UsageError("give --drafter or --no-spec: there is nothing to serve")
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
        RunChoice(
            paths=tuple(path for path, _ in named), labels=tuple(label for _, label in named)
        ),
        ReportFiles(path=folder / "report.html", json_path=folder / "report.json"),
        quiet=quiet or as_json,
    )
    if as_json:
        typer.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
    if any(result.done.stopped for result in results):
        raise typer.Exit(EXIT_INTERRUPTED)
    if not all(result.done.whole for result in results):
        raise typer.Exit(EXIT_ERROR)


def key_variable(named: str | None, options: Sequence[str]) -> str | None:
    """Return the name of the environment variable with the servers' key; None if they need no key.

    Raises UsageError for `--api-key`, and for a key that no header can carry.
    """
    import os

    from driftscope.boundary.text import key_from
    from driftscope.errors import UsageError
    from driftscope.workloads.bench import VLLM_KEY

    if any(option.partition("=")[0] == "--api-key" for option in options):
        raise UsageError("--api-key: the list of processes would show it; give --api-key-env NAME")
    variable = named or (VLLM_KEY if os.environ.get(VLLM_KEY) else None)
    if variable is not None:
        key_from(variable, os.environ)
    return variable


def draft_tokens(text: str) -> list[int]:
    """Return the numbers of a text such as "2,4,8"; raises UsageError."""
    from driftscope.errors import UsageError

    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if any(number < 1 for number in counts):
        raise UsageError(f"-k {text}: give whole numbers from 1, separated by commas")
    return counts


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
    """Return one contender per drafter and K, and one without speculation if asked for."""
    from driftscope.workloads.bench import Contender

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
                        K: tokens,
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


def drafting_contender(
    model: str,
    drafters: Sequence[str],
    k: str | None,
    options: Sequence[str],
    *,
    method: str,
    every: int | None,
    api_key: str | None,
) -> Contender:
    """Return the server whose K is searched: with vLLM's own --speculative-config among `options`,
    or with one drafter. Raises UsageError."""
    from dataclasses import replace

    from driftscope.cli.best_k import speculation_in
    from driftscope.errors import UsageError

    config, left = speculation_in(options)
    if len(drafters) != (1 if config is None else 0):
        raise UsageError("--best-k: give one --drafter, or --speculative-config as for vllm serve")
    starts = draft_tokens(k or str((config or {}).get(K, DEFAULT_K)))
    if len(starts) > 1:
        raise UsageError(f"-k {k}: --best-k starts with one K")
    (contender,) = contenders_of(
        model,
        drafters or ["drafter"],
        starts,
        left,
        method=method,
        every=every,
        no_spec=False,
        api_key_env=api_key,
    )
    if config is None:
        return contender
    given = {**config, K: starts[0]}
    if "model" in given:
        given["model"] = _drafter(model, str(given["model"]))
    return replace(contender, speculation=given)


def _resolved(model: str, options: Sequence[str]) -> tuple[str, Sequence[str], Mapping[str, str]]:
    """Return the model's path, with the options and environment that the shipped small model
    adds."""
    if model != TRIO:
        return model, options, {}
    with needs_lab():
        from driftscope_lab.trio import serving

    return serving.target_path(), serving.completed(options), serving.ENVIRONMENT


def _drafter(model: str, name: str) -> str:
    if model != TRIO:
        return name
    with needs_lab():
        from driftscope_lab.trio.serving import drafter_path

    return drafter_path(name)
