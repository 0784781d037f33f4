"""The `driftscope pays` command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.cli import options
from driftscope.distributions import LAB, LAB_TARGETS, needs_lab

if TYPE_CHECKING:
    from driftscope.workloads.client.replay import Order
    from driftscope.workloads.contenders import Contender, Running
    from driftscope_lab.models import LabModel

FOLDER, SUITE = "driftscope-pays", "concurrency"
K, DEFAULT_K = "num_speculative_tokens", 4
SPECULATION = ("--speculative-config", "-sc")
"""Names of vLLM's option for the drafter."""
WITH = "with speculation"
"""Label of a running server that drafts."""
_ONE_TIME = ("rounds", "output", "as_json", "quiet")
"""Parameters that a command for a second measurement does not repeat."""
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")
"""Name of a repository of models."""
_SECRET = re.compile(r"hf[-_]token|password|secret|credential|api[-_]?key", re.IGNORECASE)
"""Words of vLLM's options, and of the JSON in them, whose values are written to no file."""


def pays(
    context: typer.Context,
    server: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|URL",
            callback=options.with_scheme,
            help="Target model, as for `vllm serve` (`trio` is the small shipped one, `smollm2` "
            "SmolLM2-135M-Instruct), or the URL of a running server.",
        ),
    ],
    without: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A running server of the same model without a drafter."),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|LABEL=NAME",
            help="EAGLE-3 drafter to serve it with; repeatable. For others, give vLLM's "
            "--speculative-config.",
        ),
    ] = None,
    k: Annotated[
        str | None,
        typer.Option("-k", "--k", metavar="4|2,4,8", help="Draft tokens per round; default: 4."),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="A shipped suite (see `driftscope replay --list-suites`), or a YAML file.",
        ),
    ] = SUITE,
    prompts: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Prompts to use instead of the suite's."),
    ] = None,
    concurrency: options.ConcurrencyOption = None,
    rate: options.RateOption = None,
    repeat: options.RepeatOption = None,
    limit: options.LimitOption = None,
    warmup: options.WarmupOption = 4,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of rounds in which all of them are asked in turn."
        ),
    ] = 2,
    timeout: options.TimeoutOption = 600.0,
    keep_texts: options.KeepTextsOption = False,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with an API key: each server is started with it, through "
            "its environment, and each request carries it. Default: VLLM_API_KEY if it is set; "
            "for a running server also OPENAI_API_KEY.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            callback=options.real_folder,
            help="Folder for runs, logs and report; default: driftscope-pays/TIME, for one URL "
            "driftscope-pays/HOST-PORT.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also print the report as JSON.")] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Say whether speculation pays: the same prompts at the same load, with and without it.

    Starts vLLM by itself, without a drafter and with each one in turn, twice; every other option
    goes to vLLM unchanged. Two running servers are asked in turn. One running server is asked
    once: restart it without its drafter, or with it, and give the same command again. Writes one
    report.

    Exits 0 if it pays, 3 if it does not, 4 if that cannot be told, 1 when a request was not
    answered or rows were lost, 130 after Ctrl-C; the report then covers the finished requests.
    """
    from driftscope.distributions import needs
    from driftscope.errors import UsageError

    with needs("replay"):
        from driftscope.analysis.replays import AGAIN
        from driftscope.cli.replay import levels, run_path
        from driftscope.workloads.client.replay import Order
        from driftscope.workloads.client.sending import Patience
        from driftscope.workloads.suites.prompts import prompts_of
        from driftscope.workloads.suites.suite import load_suite
    is_url = options.is_url(server)
    if is_url and (extra := [*(drafter or ()), *([k] if k else ()), *context.args]):
        raise UsageError(
            f"{server} runs already, so it takes no --drafter, -k or option of vLLM: "
            f"{' '.join(extra)}"
        )
    if without is not None and not is_url:
        raise UsageError(f"--without {without}: give the URL of a server in place of {server}, too")
    api_key_env = key_variable(api_key_env, context.args)
    if prompts is None and suite == SUITE and (known := _lab_model(server)):
        prompts = known.name
    one = is_url and without is None
    folder = run_path(output or Path(FOLDER) / (_folder_name(server) if one else "{time}"))
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
        keep_texts=keep_texts,
        note={} if prompts is None else {"prompts": prompts},
    )
    if is_url:
        servers = _servers(server, without, order)
        words = ["driftscope", "pays", *_again(context), *(["-o", f"{output}"] if output else [])]
        again = shlex.join(words) if one else ""
        raise typer.Exit(_ask(servers, order, folder, 1 if one else rounds, as_json, quiet, again))
    tokens = [int(number) for number in options.numbers(k, "-k", whole=True)]
    contenders = contenders_of(server, drafter or [], tokens, context.args, api_key_env=api_key_env)
    for contender in contenders[1:]:
        path = str((contender.speculation or {}).get("model") or "")
        if path and not Path(path).exists() and not _REPOSITORY.fullmatch(path):
            raise UsageError(f"{path}: no drafter is there; give a folder, or OWNER/NAME")
    order = replace(order, note={**order.note, AGAIN: _again(context)})
    raise typer.Exit(_ask(contenders, order, folder, rounds, as_json, quiet))


def _again(context: typer.Context) -> list[str]:
    """Return the arguments that measure the same once more; [] if they hold a secret."""
    if any(map(_SECRET.search, context.args)):
        return []
    words = [context.params["server"]]
    for option in context.command.params[1:]:
        source = context.get_parameter_source(option.name or "")
        if source is None or source.name != "COMMANDLINE" or option.name in _ONE_TIME:
            continue
        given = context.params[option.name]
        for value in given if isinstance(given, list) else [given]:
            words += [option.opts[0]] if value is True else [option.opts[0], f"{value}"]
    return [*words, *context.args]


def _ask(
    contenders: Sequence[Contender | Running],
    order: Order,
    folder: Path,
    rounds: int,
    as_json: bool,
    quiet: bool,
    again: str = "",
) -> int:
    """Ask the servers in turn, write the report, print the answer, and return the exit code.
    `again`: the command that asks a single running server once more."""
    from driftscope.cli.run_reports import write_reports
    from driftscope.cli.screens import replay as talk
    from driftscope.cli.screens.replay import exit_code, say_answer
    from driftscope.errors import EXIT_ERROR, EXIT_INTERRUPTED
    from driftscope.pipeline import Inputs
    from driftscope.workloads.client.replay import require_answers
    from driftscope.workloads.contenders import ask_in_turn, recorded_in

    done = []
    with talk.watched(quiet=quiet) as watcher:
        for label, asked in ask_in_turn(contenders, order, folder, rounds=rounds, watcher=watcher):
            done.append(asked)
            talk.say_lost(asked)
            if not quiet:
                talk.say(f"{label}: {talk.counted(asked)}")
    for replayed in done:
        require_answers(replayed)
    named = recorded_in(folder)
    analysis = write_reports(
        Inputs(sources=[path for path, _ in named], labels=[label for _, label in named]),
        folder / "report.html",
        json_path=folder / "report.json",
        quiet=True,
    )
    if as_json:
        typer.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        say_answer(analysis, again)
    if not quiet:
        talk.say(f"written: {folder / 'report.html'}")
    if any(replayed.stopped for replayed in done):
        return EXIT_INTERRUPTED
    return exit_code(analysis) if all(replayed.whole for replayed in done) else EXIT_ERROR


def _folder_name(url: str) -> str:
    """Return the name of the folder for a running server."""
    from urllib.parse import urlsplit

    return urlsplit(url).netloc.rpartition("@")[2].replace(":", "-")


def _servers(url: str, without: str | None, order: Order) -> list[Running]:
    """Return the running servers, labelled by whether they draft. Raises DriftscopeError."""
    import time

    from driftscope.errors import UsageError
    from driftscope.workloads.client.server import facts_of
    from driftscope.workloads.contenders import NO_SPECULATION, Running

    now, found = time.time(), []
    for place, given in enumerate([url] if without is None else [without, url]):
        facts = facts_of(given, order.api_key_env)
        drafts = bool(place) if without is not None else facts.speculates
        if drafts is None:
            raise UsageError(
                f"{given}: it does not say whether it was started with a drafter; start it once "
                f"with and once without, and give --without URL"
            )
        if facts.speculates not in (None, drafts):
            raise UsageError(
                f"{given}: it was started {'with' if facts.speculates else 'without'} a drafter; "
                "give first the URL of the server that has one, then --without that of the other"
            )
        label = WITH if drafts else NO_SPECULATION
        found.append(Running(label=label, url=given, start=facts.started_s or now))
    return found


def key_variable(named: str | None, options: Sequence[str]) -> str | None:
    """Return the name of the environment variable with the servers' key; None if they need no key.

    Raises UsageError for `--api-key`, and for a key that no header can carry.
    """
    import os

    from driftscope.boundary.text import key_from
    from driftscope.errors import UsageError
    from driftscope.workloads.contenders import VLLM_KEY

    if any(option.partition("=")[0] == "--api-key" for option in options):
        raise UsageError("--api-key: the list of processes would show it; give --api-key-env NAME")
    variable = named or (VLLM_KEY if os.environ.get(VLLM_KEY) else None)
    if variable is not None:
        key_from(variable, os.environ)
    return variable


def contenders_of(
    model: str,
    drafters: Sequence[str],
    k: Sequence[int],
    options: Sequence[str],
    *,
    api_key_env: str | None = None,
) -> list[Contender]:
    """Return the server without speculation, then one per drafter and K. The drafters are those
    named, or those of --speculative-config among the `options`. Raises UsageError."""
    from driftscope.errors import UsageError
    from driftscope.workloads.contenders import NO_SPECULATION, Contender

    known = _lab_model(model)
    target, left, environ = _resolved(model, options, drafters)
    configs, left = speculations_in(left)
    if not drafters and not configs:
        raise UsageError(f"{model}: give --drafter, or --speculative-config as for `vllm serve`")
    if drafters and configs:
        raise UsageError("give either --drafter or --speculative-config")
    plain = Contender(
        label=NO_SPECULATION,
        model=target,
        speculation=None,
        options=left,
        environ=environ,
        api_key_env=api_key_env,
    )
    named: list[tuple[str, Mapping[str, Any]]] = []
    for given in drafters:
        label, _, path = given.rpartition("=")
        drafter = {"method": "eagle3", "model": known.drafter(path) if known else path}
        named.append((label or Path(path).name, drafter))
    named += [
        (Path(str(config.get("model") or config.get("method") or WITH)).name, config)
        for config in configs
    ]
    served = [
        (label, {**config, K: tokens})
        for label, config in named
        for tokens in k or [config.get(K, DEFAULT_K)]
    ]
    labels = [label for label, _ in served]
    return [
        plain,
        *(
            replace(
                plain,
                label=label if labels.count(label) == 1 else f"{label}, K = {config[K]}",
                speculation=config,
            )
            for label, config in served
        ),
    ]


def speculations_in(options: Sequence[str]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the values of every --speculative-config, and the other options. Raises UsageError."""
    from driftscope.boundary.bounds import MAX_K
    from driftscope.boundary.files import parse_json
    from driftscope.errors import UsageError

    left, found = list[str](), list[Mapping[str, Any]]()
    waiting = iter(options)
    for option in waiting:
        name, equals, value = option.partition("=")
        if name not in SPECULATION:
            left.append(option)
            continue
        try:
            config = parse_json(value if equals else next(waiting, ""))
        except ValueError as error:
            raise UsageError(f"{SPECULATION[0]}: not JSON: {error}") from error
        if not isinstance(config, dict):
            raise UsageError(f"{SPECULATION[0]}: give a JSON object, as for `vllm serve`")
        tokens = config.get(K, DEFAULT_K)
        if type(tokens) is not int or not 0 < tokens <= MAX_K:
            raise UsageError(f"{SPECULATION[0]}: {K} is {tokens!r}, not a number up to {MAX_K}")
        found.append(config)
    return found, left


def _resolved(
    model: str, options: Sequence[str], drafters: Sequence[str]
) -> tuple[str, Sequence[str], Mapping[str, str]]:
    """Return the model's path, with the options and environment that a model of the lab adds."""
    known = _lab_model(model)
    if known is None:
        return model, options, {}
    completed = known.completed(options)
    return (
        str(known.prepared()),
        completed if drafters else known.with_speculation(completed),
        known.environment,
    )


def _lab_model(model: str) -> LabModel | None:
    """Return the lab's model of that name or of that path, as runs name it; None if it is none."""
    from importlib.util import find_spec

    if model not in LAB_TARGETS and find_spec(LAB) is None:
        return None
    with needs_lab():
        from driftscope_lab.models import lab_model

    return lab_model(model)
