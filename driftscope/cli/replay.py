"""The `driftscope replay` command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.cli import options

if TYPE_CHECKING:
    from driftscope.workloads.suites.plan import LoadLevel

DEFAULT_RUN = Path("driftscope-runs/replay-{time}")


def replay(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="An OpenAI-compatible server.")
    ] = None,
    suite: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A shipped suite, or a YAML file.")
    ] = "smoke",
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Prompts to use instead of the suite's: see --list-suites."
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="RUN",
            callback=options.real_folder,
            help="Run directory; {time} is replaced.",
        ),
    ] = DEFAULT_RUN,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Default: the first model that the server names."),
    ] = None,
    concurrency: options.ConcurrencyOption = None,
    rate: options.RateOption = None,
    repeat: options.RepeatOption = None,
    limit: options.LimitOption = None,
    warmup: options.WarmupOption = 4,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the order and of everything random.")
    ] = None,
    timeout: options.TimeoutOption = 600.0,
    idle_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.1, help="Seconds allowed without receiving a byte."),
    ] = 120.0,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of times that a request is sent again if it was refused or did not "
            "reach the server.",
        ),
    ] = 2,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with the server's API key; default: OPENAI_API_KEY if it is "
            "set.",
        ),
    ] = None,
    keep_texts: options.KeepTextsOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: options.QuietOption = False,
    list_suites: Annotated[
        bool,
        typer.Option(
            "--list-suites",
            help="List the shipped suites and prompts, and the transforms of a suite's own file.",
        ),
    ] = False,
) -> None:
    """Send a suite of prompts to a server and record the answers, as a run for `analyze`.

    Exits 1 when a request was never answered or rows were lost, as on a full disk, 4 when no
    request was answered, 130 after Ctrl-C; the run then still has every other request. A key, or a
    user and password in the URL, is never recorded.
    """
    from driftscope.distributions import needs
    from driftscope.errors import UsageError

    with needs("replay"):
        from driftscope.cli.screens import replay as talk
        from driftscope.workloads.client.replay import Order
        from driftscope.workloads.client.replay import replay as send
        from driftscope.workloads.client.sending import Patience
        from driftscope.workloads.suites.prompts import prompts_of
        from driftscope.workloads.suites.suite import load_suite
    if list_suites:
        talk.lists()
        return
    if url is None:
        raise UsageError("give the URL of a server, such as http://127.0.0.1:8000")
    order = Order(
        url=url,
        suite=load_suite(suite),
        run=run_path(output),
        model=model,
        levels=levels(concurrency, rate),
        repeat=repeat,
        warmup=warmup,
        limit=limit,
        seed=seed,
        patience=Patience(timeout_s=timeout, idle_s=idle_timeout, retries=retries),
        api_key_env=api_key_env,
        prompts=None if prompts is None else prompts_of(prompts),
        keep_texts=keep_texts,
        note={} if prompts is None else {"prompts": prompts},
    )
    with talk.watched(quiet=quiet) as watcher:
        done = send(order, watcher)
    raise typer.Exit(talk.tell(done, as_json=as_json, quiet=quiet))


def run_path(output: Path) -> Path:
    """Return `output` with {time} replaced."""
    import time

    return Path(str(output).replace("{time}", time.strftime("%Y%m%d-%H%M%S")))


def levels(concurrency: str | None, rate: str | None) -> Sequence[LoadLevel]:
    """Return the levels of texts such as "1,4,16"; raises UsageError."""
    from driftscope.workloads.suites.suite import levels_of

    loops = options.numbers(concurrency, "--concurrency", whole=True)
    return levels_of(list(map(int, loops)), options.numbers(rate, "--rate"))
